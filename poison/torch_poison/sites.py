"""Sites, the kinds of memory that poison can fill, and the bits of their sentinels. No torch.

A site has a tag, the number in the payload of its NaN sentinels. This package knows one site alone,
memory of unknown purpose. A program that knows more of its memory registers its own sites, or says
where they can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_poison.errors import PoisonError

QUIET_BITS = {
    "bfloat16": 0x7FC0,
    "float16": 0x7F40,
    "float32": 0x7FD50000,
    "float64": 0x7FF8_5EED_0000_0000,
}
"""The sentinel without its tag. Other types have no room for a tag: their sentinel is all ones."""

TAG_MASK = 0x3F
MOST_TAG = 60
"""The largest tag. Arithmetic makes NaN with larger payloads of six bits."""

OUT_OF_RANGE = 2_147_480_000
"""The index of strict mode: no pool has so many pages, so a read through it must fault (after
FlashMLA's tests).
"""

WORKSPACE = "workspace"
"""The site of memory of unknown purpose, for example scratch that a kernel allocates."""

_tag_of = {WORKSPACE: 3}
_site_of = {tag: site for site, tag in _tag_of.items()}
_to_ask: list[Callable[[], Mapping[str, int]]] = []


def register(tags: Mapping[str, int]) -> None:
    """Add sites with their tags (1 to MOST_TAG). A site that is there with the same tag stays.

    Raises PoisonError for a tag out of range, and for a name or a tag that is taken.
    """
    for site, tag in tags.items():
        if not 1 <= tag <= MOST_TAG:
            raise PoisonError(f"site {site!r}: tag {tag} is not in 1 to {MOST_TAG}; choose another")
        if _tag_of.get(site, tag) != tag:
            raise PoisonError(f"site {site!r}: it has tag {_tag_of[site]} already, not {tag}")
        if _site_of.get(tag, site) != site:
            raise PoisonError(
                f"site {site!r}: tag {tag} is that of {_site_of[tag]!r}; choose another"
            )
        _tag_of[site] = tag
        _site_of[tag] = site


def ask(source: Callable[[], Mapping[str, int]]) -> None:
    """Register what `source` returns, site -> tag, when a site or a tag is first needed.

    So a program can be imported without its tables.
    """
    _to_ask.append(source)


def names() -> frozenset[str]:
    """All sites."""
    _ask_all()
    return frozenset(_tag_of)


def tag_of(site: str) -> int:
    """The tag of a site. Raises PoisonError for a site that nothing registered."""
    if site not in _tag_of:
        _ask_all()
    if site not in _tag_of:
        raise PoisonError(f"site {site!r} has no tag; give it one with torch_poison.sites.register")
    return _tag_of[site]


def site_of(tag: int) -> str | None:
    """The site with a tag, or None."""
    if tag not in _site_of:
        _ask_all()
    return _site_of.get(tag)


def _ask_all() -> None:
    while _to_ask:
        register(_to_ask.pop(0)())
