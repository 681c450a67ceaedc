"""What a kernel under judgement does besides its work, and oracle `honest`: it answers from its
inputs alone.

A wrong answer has findings by other oracles. This one looks for what a cheat leaves: the kernel
searched its process, returned what it had returned before, or answers by what came before the call.
Such kernels are listed in docs/data/cheats.md. The cause names evidence, not intent: a kernel that
keeps a buffer by mistake leaves the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.influence import Influence, stuck_rows, words_of
from harness.evidence.observed import Observed, compared
from harness.evidence.records import Evidence, Judgement, Run

if TYPE_CHECKING:
    import torch

    from harness.kernels.conduct import Conduct

Observe = Callable[[], list[Observed]]


@dataclass(frozen=True, slots=True)
class Retrial:
    """Calls that say more about a wrong answer. They are made when the oracle asks.

    Each returns the tensors of the run's `Observed`, in their order; nothing if the kernel fails.
    `earlier` is the answer to the call before, whose inputs had other values and the same shapes.
    `influences` are calls with one part of the inputs changed. `again` is the answer to the same
    inputs, a second time. `elsewhere` is that in a new process. The costly ones are None if the
    kernel had enough of them.
    """

    kernel: str
    earlier: Observe
    influences: Callable[[], list[Influence]] | None
    again: Observe
    elsewhere: Observe | None


def honest(evidence: Evidence) -> Judgement:
    """What kernels did is a finding if it is a proof, or if the answer is wrong beside it."""
    from harness.kernels.conduct import Conduct

    # What one pattern showed, others mostly repeat.
    findings: dict[tuple[str, str], Finding] = {}
    notes: dict[str, None] = {}
    for run in evidence.runs:
        # Reading a clock or an object list harms nobody while the answer is right. Proofs are told
        # anyway.
        wrong = [one for one in run.all(Observed) if _is_wrong(one)]
        for conduct in run.all(Conduct):
            if conduct.is_proof or any(one.site in ("", None, conduct.site) for one in wrong):
                key = (conduct.what, conduct.site)
                findings.setdefault(key, _of_conduct(conduct, run, bool(wrong)))
            elif conduct.site:
                notes[f"{conduct.who} {conduct.what}"] = None
        for retrial in run.all(Retrial):
            for finding in _of_retrial(retrial, run, wrong) if wrong else ():
                findings.setdefault(("", finding.tensor), finding)
    return Judgement(list(findings.values()), looked_at=len(evidence.runs), notes=list(notes))


def _is_wrong(observed: Observed) -> bool:
    return observed.expected is not None and compared(observed).mismatch is not None


def _of_conduct(conduct: Conduct, run: Run, is_wrong: bool) -> Finding:
    beside = ", and its answer is wrong" if is_wrong and not conduct.is_proof else ""
    return _finding(conduct.who, f"{conduct.who} {conduct.what}{beside}", run, site=conduct.site)


def _finding(
    kernel: str, message: str, run: Run, *, tensor: str = "", where: str = "", site: str = ""
) -> Finding:
    return Finding(
        oracle="honest",
        tensor=tensor,
        where=where,
        site=site or None,
        kernel=kernel,
        cause=Code.CHEATS,
        message=f"{message} (pattern {run.pattern})",
    )


def _of_retrial(retrial: Retrial, run: Run, wrong: list[Observed]) -> Iterator[Finding]:
    """The first of these that holds: a later one costs more calls."""
    observed = run.all(Observed)
    # Outputs full of sentinels: the kernel returned memory that it never wrote. All further calls
    # would show the same.
    if _nothing_written(observed):
        names = " and ".join(dict.fromkeys(one.name for one in observed))
        message = f"nothing wrote {names}: all of it is as torch handed it out"
        yield _finding(retrial.kernel, message, run)
        return
    stuck = list(_unmoved(retrial, run, wrong))
    stuck = stuck or list(_without_influence(retrial, run))
    if stuck:
        yield from stuck
        return
    if retrial.elsewhere is None or not any(map(_is_wrong, retrial.again())):
        # An answer that is wrong once is wrong by chance, as in a race: that is for other oracles.
        return
    # The same call as the first one of a new process: nothing came before it.
    found = retrial.elsewhere()
    if found and not any(map(_is_wrong, found)):
        message = (
            f"{retrial.kernel} answers by what came before: the same call is wrong twice here, and"
            " right in a new process"
        )
        yield _finding(retrial.kernel, message, run)


def _nothing_written(observed: list[Observed]) -> bool:
    """Whether each live element of each output is a sentinel."""
    from torch_poison.scan import scan

    if not observed or any(not one.num_live_elements for one in observed):
        return False
    return all(
        sum(where.count for where in scan(one.tensor, _live(one)).sentinels.values())
        == one.num_live_elements
        for one in observed
        # Types of one byte have a single NaN. That a kernel did not compute it cannot be told.
        if one.tensor.element_size() > 1
    )


def _live(observed: Observed) -> torch.Tensor:
    tensor = observed.tensor
    return observed.live.reshape(-1, *(1,) * (tensor.ndim - 1)).expand(tensor.shape)


def _unmoved(retrial: Retrial, run: Run, wrong: list[Observed]) -> Iterator[Finding]:
    """A finding for each wrong output with rows that the call before had too."""
    earlier = retrial.earlier()
    if len(earlier) != len(run.all(Observed)):
        return
    pairs = zip(run.all(Observed), earlier, strict=True)
    for now, before in pairs:
        if now in wrong and (rows := _same_rows(now, before)):
            where = place(now.describe, rows)
            message = (
                f"{now.name} does not come from the inputs: {where} keeps its bits in a call with"
                " other values, and is wrong"
            )
            yield _finding(retrial.kernel, message, run, tensor=now.name, where=where)


def _without_influence(retrial: Retrial, run: Run) -> Iterator[Finding]:
    """A finding for the first input that each output does not depend on."""
    named = set[str]()
    for one in retrial.influences() if retrial.influences is not None else ():
        stuck = stuck_rows(one)
        if stuck and one.name not in named:
            named.add(one.name)
            where = place(one.describe, stuck)
            words = words_of(one, stuck)
            yield _finding(retrial.kernel, words, run, tensor=one.name, where=where)


def _same_rows(now: Observed, before: Observed) -> list[int]:
    """The live rows with equal bits, if they can only come from elsewhere.

    A row that holds a NaN, and one value alone, may be what a bug leaves: the poison, or zeros. Of
    these, all rows must be alike.
    """
    import torch
    from torch_poison.patterns import bits_view

    if not now.tensor.dtype.is_floating_point or now.tensor.shape != before.tensor.shape:
        return []
    height = len(now.tensor)
    values = now.tensor.reshape(height, -1)
    # By bits: a NaN is unlike itself, and -0 like 0.
    bits = bits_view(values.contiguous())
    same = (bits == bits_view(before.tensor.reshape(height, -1).contiguous())).all(dim=1)
    assert now.expected is not None
    # A right row may well be equal in both calls, such as one whose inputs did not change.
    is_wrong = (values.double() - now.expected.reshape(height, -1).double()).abs().amax(1) > 1e-2
    finite = values.float().isfinite().all(dim=1)
    found = same & finite & is_wrong & now.live
    constant = (bits == bits[:, :1]).all(dim=1)
    # Zeros everywhere are what a kernel returns that computes nothing.
    if torch.equal(found & constant, now.live) and len(now.live):
        return [int(row) for row in now.live.nonzero().flatten()]
    return [int(row) for row in (found & ~constant).nonzero().flatten()]


ORACLES = (
    OracleSpec(
        "honest",
        "a kernel under judgement answers from its inputs alone",
        honest,
        rank=25,
    ),
)
