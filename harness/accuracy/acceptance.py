"""The share of drafts that a server accepts, by epoch, from its metrics.

A wrong draft costs speed and no answer, so a drafter's broken memory shows here and not in accuracy
(vllm-project/vllm#56734). vLLM counts drafted and accepted tokens. SGLang counts them for each
answer. Its server's metrics have a gauge of the last steps, which says nothing about an epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import TypeAdapter

from harness.core.files import write_atomic
from harness.core.stored import NoFile, read_json, value_of

ACCEPTANCE_FILE = "acceptance.json"
"""In a run directory: drafted and accepted tokens of each epoch that was asked, and where drafts
were refused.
"""
MARGIN = 0.05
"""How far an epoch may accept less than its baseline: text differs between runs, a broken drafter
loses more.
"""
# Bounded, so that it is finite: 99 digits and an exponent of 99 are less than 1.8e308.
NUMBER = r"\d{1,99}(?:\.\d*)?(?:[eE][+-]?\d\d?)?"
"""A number in /metrics, which is finite and not negative."""
# The Prometheus client adds `_total` to the name of a counter.
_COUNTER = re.compile(
    rf"^vllm:spec_decode_num_(draft|accepted)_tokens(?:_total)?(?:\{{[^}}]*\}})? ({NUMBER})\s*$",
    re.MULTILINE | re.ASCII,
)


_STORED: TypeAdapter[dict[int, tuple[int, int, tuple[str, ...]]]] = TypeAdapter(
    dict[int, tuple[int, int, tuple[str, ...]]]
)


@dataclass(frozen=True, slots=True)
class Drafts:
    """How many tokens were drafted and accepted."""

    drafted: int
    accepted: int
    refused: tuple[str, ...] = ()
    """Where drafts were refused, as far as the engine says it."""

    @property
    def is_possible(self) -> bool:
        """Whether these can be counts of one time.

        Counters of a server that was started again fall.
        """
        return 0 <= self.accepted <= self.drafted

    @property
    def share(self) -> float:
        """The accepted share; 1 without drafts."""
        return self.accepted / self.drafted if self.drafted else 1.0

    def __add__(self, more: Drafts) -> Drafts:
        return Drafts(
            self.drafted + more.drafted, self.accepted + more.accepted, self.refused + more.refused
        )

    def since(self, before: Drafts) -> Drafts:
        # The list only grows, as a counter does.
        refused = self.refused[len(before.refused) :]
        return Drafts(self.drafted - before.drafted, self.accepted - before.accepted, refused)


@runtime_checkable
class CountsDrafts(Protocol):
    """A backend that knows how many drafts were accepted."""

    def drafts(self) -> Drafts | None:
        """The counts since the model started; None for a model that does not draft, or does not say
        it.
        """
        ...


def drafts_in(metrics: str) -> Drafts | None:
    """The counts in the text of /metrics, summed over engines; None without them."""
    found = {"draft": 0.0, "accepted": 0.0}
    matches = _COUNTER.findall(metrics)
    for name, value in matches:
        found[name] += float(value)
    return Drafts(int(found["draft"]), int(found["accepted"])) if matches else None


def read_drafts(folder: Path) -> dict[int, Drafts]:
    """Epoch -> its drafts, of a run, if its server counted them."""
    file = folder / ACCEPTANCE_FILE
    try:
        found = value_of(_STORED, read_json(file), file)
    except NoFile:
        return {}
    return {epoch: Drafts(*counts) for epoch, counts in sorted(found.items())}


def keep_drafts(folder: Path, epoch: int, counted: Drafts) -> None:
    """Add an epoch to a run, unless its counts cannot be.

    An epoch that `--resume` found complete has drafted nothing, and keeps its counts.
    """
    kept = read_drafts(folder)
    if counted.is_possible and (counted.drafted or epoch not in kept):
        kept[epoch] = counted
    text = json.dumps(
        {number: [one.drafted, one.accepted, one.refused] for number, one in kept.items()}
    )
    write_atomic(folder / ACCEPTANCE_FILE, text)


def acceptance_in_words(epochs: Sequence[Drafts]) -> str:
    """`drafts accepted 0.9876, 0.0000 (of 810, 790)`."""
    shares = ", ".join(f"{epoch.share:.4f}" for epoch in epochs)
    return f"drafts accepted {shares} (of {', '.join(str(epoch.drafted) for epoch in epochs)})"
