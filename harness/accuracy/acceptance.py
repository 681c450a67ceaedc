"""The share of drafts that a server accepts, by epoch, from its metrics.

A wrong draft costs speed and no answer, so a drafter's broken memory shows here and not in accuracy
(vllm-project/vllm#56734). vLLM and llama.cpp count drafted and accepted tokens; llama.cpp counts 0
where it does not draft. SGLang counts them for each answer. Its server's metrics have a gauge of
the last steps, which says nothing about an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import TypeAdapter

from harness.accuracy.epoch_counts import Counters, read_epochs, write_epochs

ACCEPTANCE_FILE = "acceptance.json"
"""In a run directory: drafted and accepted tokens of each epoch that was asked, and where drafts
were refused.
"""
MARGIN = 0.05
"""How far an epoch may accept less than its baseline: text differs between runs, a broken drafter
loses more.
"""
_COUNTERS = Counters(
    {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "llamacpp:spec_decode_num_draft_tokens": "drafted",
        "llamacpp:spec_decode_num_accepted_tokens": "accepted",
    }
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
    found = _COUNTERS.summed(metrics)
    drafted, accepted = (int(found.get(what, 0)) for what in ("drafted", "accepted"))
    return Drafts(drafted, accepted) if found else None


def read_drafts(folder: Path) -> dict[int, Drafts]:
    """Epoch -> its drafts, of a run, if its server counted them."""
    found = read_epochs(folder / ACCEPTANCE_FILE, _STORED)
    return {epoch: Drafts(*counts) for epoch, counts in found.items()}


def keep_drafts(folder: Path, epoch: int, counted: Drafts) -> None:
    """Add an epoch to a run, unless its counts cannot be.

    An epoch that `--resume` found complete has drafted nothing, and keeps its counts.
    """
    kept = read_drafts(folder)
    if counted.is_possible and (counted.drafted or epoch not in kept):
        kept[epoch] = counted
    counts = {number: (one.drafted, one.accepted, one.refused) for number, one in kept.items()}
    write_epochs(folder / ACCEPTANCE_FILE, counts)


def acceptance_in_words(epochs: Sequence[Drafts]) -> str:
    """`drafts accepted 0.9876, 0.0000 (of 810, 790)`."""
    shares = ", ".join(f"{epoch.share:.4f}" for epoch in epochs)
    return f"drafts accepted {shares} (of {', '.join(str(epoch.drafted) for epoch in epochs)})"
