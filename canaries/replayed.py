"""The decisions of an engine (experts, tokens of an indexer), replayed in the reference and judged
by its scores.

The reference runs teacher forced with the engine's choices. Its own scores along this path tell how
far the least choice is below the best token or expert left out. How far rounding moves these scores
is measured with the noise of `random_model.rounding_noise`. What is further below is a finding.
What is left of the distance of log probabilities is rounding alone. See docs/tolerances.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from canaries import random_model
from canaries.recorded import NONE, Decider, Ids
from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.evidence.decisions import shortfall

SAMPLES = 8
MARGIN = 12.0
"""The largest shortfall of a decision, in root mean squares of what rounding does to the difference
of two scores.
"""
STAGES = {
    "index": re.compile(r"layers\.(\d+)\..*indexer$"),
    "experts": re.compile(r"layers\.(\d+)\..*(gate|router)$"),
}
"""Stage -> names of the deciding modules of transformers, in their order in a layer."""


class Replay(TorchFunctionMode):
    """Runs a model with the choices `ids`; where there are none or no valid ones it makes its own.

    Keeps for each decider its scores [T, n], what was taken [T, n] bool, and which rows [T] bool
    were not valid.
    """

    def __init__(self, model: Any, ids: Ids) -> None:
        super().__init__()
        self._ids = ids
        self._deciders = [
            (name, module) for name, module in model.named_modules() if _decider(name)
        ]
        self._handles: list[Any] = []
        self._current: tuple[Decider, Any] | None = None
        self.scores: dict[Decider, Tensor] = {}
        self.taken: dict[Decider, Tensor] = {}
        self.invalid: dict[Decider, Tensor] = {}
        self.known: dict[Decider, Tensor] = {}

    def __enter__(self) -> Replay:
        for name, module in self._deciders:
            before = module.register_forward_pre_hook(self._entering(_decider(name)))
            self._handles += [before, module.register_forward_hook(self._leaving)]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _entering(self, decider: Decider | None) -> Callable[..., None]:
        def enter(module: Any, _args: Any) -> None:
            self._current = (decider, module) if decider else None

        return enter

    def _leaving(self, _module: Any, _args: Any, _output: Any) -> None:
        self._current = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._current is None or getattr(func, "__name__", "") != "topk":
            return result
        decider, module = self._current
        # A router also chooses groups of experts, from scores of another shape.
        if decider.stage == "experts" and (
            args[0].dim() != 2 or result.indices.shape[-1] != module.top_k
        ):
            return result
        scores = args[0].detach()
        chosen = self._choose(
            decider, scores.reshape(-1, scores.shape[-1]).double(), result.indices
        )
        indices = chosen.view(result.indices.shape).to(result.indices.dtype)
        return torch.return_types.topk((args[0].gather(-1, indices), indices))  # type: ignore[attr-defined]

    def _choose(self, decider: Decider, scores: Tensor, own: Tensor) -> Tensor:
        """The choices [T, k] for scores [T, n]."""
        own = own.reshape(len(scores), -1).long()
        visible = _visible(decider, scores)
        taken = torch.zeros(scores.shape, dtype=torch.bool).scatter(1, own, True) & visible
        known = torch.zeros(len(scores), dtype=torch.bool)
        invalid = known.clone()
        if decider in self._ids:
            ids = self._ids[decider][: len(scores)]
            rows = torch.zeros(len(ids), scores.shape[1] + 1, dtype=torch.int64)
            inside = (ids >= 0) & (ids < scores.shape[1])
            counts = rows.scatter_add(
                1, torch.where(inside, ids, scores.shape[1]), torch.ones_like(ids)
            )[:, :-1]
            known[: len(ids)] = (ids >= 0).any(dim=1)
            wanted = taken[: len(ids)].sum(1)
            right = (
                (counts <= 1).all(1) & (ids < scores.shape[1]).all(1) & (counts.sum(1) == wanted)
            )
            right &= ~((counts > 0) & ~visible[: len(ids)]).any(1)
            invalid[: len(ids)] = known[: len(ids)] & ~right
            replayed = (known & ~invalid)[: len(ids), None]
            taken[: len(ids)] = torch.where(replayed, counts > 0, taken[: len(ids)])
        self.scores[decider], self.taken[decider] = scores.masked_fill(~visible, -torch.inf), taken
        self.known[decider], self.invalid[decider] = known, invalid
        # What fills the ids of a row that may take all it sees, lies in its future and is masked.
        return taken.float().topk(own.shape[1], dim=1).indices


def _decider(name: str) -> Decider | None:
    found = ((stage, pattern.search(name)) for stage, pattern in STAGES.items())
    return next((Decider(int(match[1]), stage) for stage, match in found if match), None)


def _visible(decider: Decider, scores: Tensor) -> Tensor:
    """The choices [T, n] bool that a position has: all experts; tokens up to itself.

    Entries of a compressed cache are fewer than positions. The model masks those of the future.
    """
    if decider.stage != "index":
        return torch.ones(scores.shape, dtype=torch.bool)
    visible = ~scores.isneginf()
    return visible.tril() if scores.shape[0] == scores.shape[1] else visible


@dataclass(slots=True)
class Excess:
    """A decision beyond rounding: what decided at which position, and how far below the best choice
    it is.
    """

    decider: Decider
    position: int
    words: str
    times: float


@dataclass(slots=True)
class Followed:
    """One sequence along an engine's decisions:

    `truth` [n - 1], samples [S, n - 1], and decisions beyond rounding.

    `num_decisions` were judged, `num_unknown` not recorded; `largest` is a decider's largest
    shortfall in its margin.
    """

    truth: Tensor
    samples: Tensor
    excesses: list[Excess] = field(default_factory=list)
    num_decisions: int = 0
    num_unknown: int = 0
    largest: dict[Decider, float] = field(default_factory=dict)


def follow(model: Any, tokens: list[int], ids: Ids, seed: int, cache: str) -> Followed:
    """Run the reference on tokens with an engine's decisions, and with noise of rounding."""
    with Replay(model, ids) as path:
        truth = random_model.token_logprobs(model, tokens)
    replayed = {decider: as_ids(taken) for decider, taken in path.taken.items()}
    pairs = {
        decider: _pairs(scores, path.taken[decider]) for decider, scores in path.scores.items()
    }
    squares = {
        decider: torch.zeros(2, len(scores)).double() for decider, scores in path.scores.items()
    }
    generator, samples = torch.Generator().manual_seed(seed), []
    for _ in range(SAMPLES):
        with random_model.rounding_noise(model, cache, generator), Replay(model, replayed) as noisy:
            samples.append(random_model.token_logprobs(model, tokens) - truth)
        for decider, scores in noisy.scores.items():
            moved = _moved(scores, path.scores[decider])
            of_pair = moved.gather(1, pairs[decider]).diff(dim=1).squeeze(1).square()
            # The difference of two scores that move by themselves.
            squares[decider] += torch.stack(
                (of_pair, 2 * moved.square().sum(1) / scores.isfinite().sum(1))
            )
    found = Followed(truth, torch.stack(samples))
    for decider in path.scores:
        moves = (squares[decider] / SAMPLES).sqrt().amax(0)
        _judge(found, path, decider, moves, ids.get(decider))
    return found


def as_ids(taken: Tensor) -> Tensor:
    """The taken [T, n] bool as ids [T, k], filled with NONE."""
    most = int(taken.sum(1).max())
    found = taken.float().topk(most, dim=1)
    return torch.where(found.values > 0, found.indices, NONE)


def _moved(scores: Tensor, path: Tensor) -> Tensor:
    """How far the scores [T, n] of a sample are from those of the path, without what all scores of
    a row share.
    """
    seen = path.isfinite()
    moved = torch.where(seen, scores - path, 0.0)
    return torch.where(seen, moved - moved.sum(1, keepdim=True) / seen.sum(1, keepdim=True), 0.0)


def _pairs(scores: Tensor, taken: Tensor) -> Tensor:
    """The least taken and the best one left out, ids [T, 2], of scores [T, n]."""
    least = scores.masked_fill(~taken, torch.inf).argmin(1)
    return torch.stack((least, scores.masked_fill(taken, -torch.inf).argmax(1)), dim=1)


def _judge(
    found: Followed, path: Replay, decider: Decider, moves: Tensor, ids: Tensor | None
) -> None:
    """Judge the decisions of one decider by how far rounding moves the difference of two scores,
    [T].
    """
    scores, taken, known, invalid = (
        kept[decider] for kept in (path.scores, path.taken, path.known, path.invalid)
    )
    seen = scores.isfinite()
    decides = taken.sum(1) < seen.sum(1)
    # No token follows the last position, and an engine does not compute a last generated token.
    found.num_unknown += int((decides & ~known)[:-1].sum())
    rows = (decides & known & ~invalid).nonzero().flatten()
    if len(rows):
        below, allowed = shortfall(scores[rows], taken[rows]), MARGIN * moves[rows]
        times = below / allowed.clamp(min=float(allowed.median()) / 4)
        found.num_decisions += len(rows)
        found.largest[decider] = max(0.0, float(times.max()))
        pairs = _pairs(scores, taken)
        for at in (~(times <= 1)).nonzero().flatten().tolist():
            least, best = pairs[rows[at]].tolist()
            words = f"takes {least}, not {best}: {float(below[at]):.3g} below it, "
            words += f"{float(below[at] / times[at]):.3g} is within rounding"
            found.excesses.append(Excess(decider, int(rows[at]), words, float(times[at])))
    for row in invalid.nonzero().flatten().tolist():
        assert ids is not None
        found.num_decisions += 1
        found.excesses.append(
            Excess(decider, row, _why_invalid(ids[row], int(seen[row].sum())), float("inf"))
        )


def _why_invalid(ids: Tensor, num_seen: int) -> str:
    chosen = ids[ids >= 0].tolist()
    if any(one >= num_seen for one in chosen):
        return f"takes {next(one for one in chosen if one >= num_seen)} of {num_seen}"
    if len(set(chosen)) < len(chosen):
        return f"takes {next(one for one in chosen if chosen.count(one) > 1)} twice"
    return f"takes {len(chosen)} of {num_seen}"


def findings(followed: list[Followed], name: str) -> Iterator[Finding]:
    """For each decider in the order of the model, its decisions beyond rounding in all
    sequences.
    """
    places: dict[Decider, list[tuple[int, Excess]]] = {}
    for request, one in enumerate(followed):
        for excess in one.excesses:
            places.setdefault(excess.decider, []).append((request, excess))
    for decider in sorted(places, key=_order):
        request, first = min(places[decider], key=lambda place: (place[0], place[1].position))
        more = (
            f"; {len(places[decider]) - 1} more of this layer" if len(places[decider]) > 1 else ""
        )
        yield Finding(
            oracle="logprobs",
            tensor=f"{decider.stage} of layer {decider.layer}",
            where=place(
                f"request {request}, token",
                (one.position for at, one in places[decider] if at == request),
            ),
            cause=Code.DIVERGED,
            excess=max(one.times for _, one in places[decider]),
            message=(
                f"decisions of {name}: request {request}, token {first.position}, layer"
                f" {decider.layer}, {decider.stage}: {first.words}{more}"
            ),
        )


def summary(followed: list[Followed], name: str) -> Iterator[str]:
    """How many decisions were judged, and for each decider its largest shortfall."""
    yield f"{name}: {sum(one.num_decisions for one in followed)} decisions replayed"
    for decider in sorted({decider for one in followed for decider in one.largest}, key=_order):
        most = max(one.largest[decider] for one in followed if decider in one.largest)
        words = f"the largest shortfall is {most:.2f} of what rounding explains"
        yield f"{name}: layer {decider.layer}, {decider.stage}: {words}"


def _order(decider: Decider) -> tuple[int, int]:
    return decider.layer, list(STAGES).index(decider.stage)
