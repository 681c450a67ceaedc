"""SGLang's Python in real releases, on a CPU.

Needs their folders: MLA_HARNESS_SGLANG_SITES, as tox sets it.
"""

from __future__ import annotations

from adapters.shared.tests.releases import bisected

RELEASES = ("0.5.12", "0.5.14", "0.5.18", "0.5.23")
OTHERS = {
    # It came with 0.5.18, and 0.5.19 has another tree.
    "sglang-host-radix-cache[page_size=1] with sglang.freed-view-of-row": (
        "skip",
        "skip",
        "caught",
        "skip",
    ),
    "sglang-host-remote-experts[amax=per_tensor]": ("known",) * 4,
    "sglang-host-context-parallel[search=prompts]": ("known", "pass", "pass", "pass"),
    "sglang-host-context-parallel[search=prompts] with sglang.prefix-of-padded-length": (
        "as",
        "caught",
        "caught",
        "caught",
    ),
    # Decode over ranks came with 0.5.16.
    "sglang-host-context-parallel[search=lengths]": ("skip", "skip", "pass", "pass"),
    # Models with recurrent states and index keys came with 0.5.20, whose pages lose the keys until
    # 0.5.22.
    "sglang-host-hicache[hicache=states]": ("skip", "skip", "skip", "pass"),
    # DeepSeek V4's windows came back from the host with 0.5.13.
    "sglang-host-hicache[hicache=windows]": ("skip", "pass", "pass", "pass"),
    **{
        f"sglang-host-hicache[hicache=windows] with sglang.window-{bug}": ("skip", *("caught",) * 3)
        for bug in ("slots-not-mapped", "states-left-on-device", "read-before-load")
    },
}


def test_each_release_passes_and_each_bug_that_is_injected_is_caught() -> None:
    rows = bisected("sglang", "SGLang", RELEASES)
    cells = {row["name"]: tuple(cell.split()[0] for cell in row["cells"]) for row in rows}
    assert len(cells) == 34
    for name, found in cells.items():
        wanted = ("caught",) * 4 if " with " in name else ("pass",) * 4
        assert found == OTHERS.get(name, wanted), name
