"""What an engine said of a random checkpoint's tokens, judged by the oracle `logprobs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from canaries import logprobs, random_model, replayed
from canaries.canary_requests import JudgedLogprobs
from canaries.logprobs import TokenLogprobs
from canaries.recorded import unpacked
from harness.core.errors import InputError
from harness.evidence.records import Judgement
from harness.run.protocol import Parent, Reply, run_child


def tokens_of(
    sequences: list[dict[str, Any]], found: list[list[float]], cache: str, name: str
) -> TokenLogprobs:
    """The log probabilities `found` of an engine beside the truths.

    Raises InputError if their counts differ.
    """
    samples = {
        kind: torch.cat(
            [torch.tensor(sequence[cache][kind]).double() for sequence in sequences], dim=1
        )
        for kind in ("steady", "free")
    }
    return beside(
        [torch.tensor(sequence["logprobs"]) for sequence in sequences], found, name, **samples
    )


def beside(
    truths: list[Tensor],
    found: list[list[float]],
    name: str,
    *,
    steady: Tensor,
    free: Tensor | None,
) -> TokenLogprobs:
    """As `tokens_of`, from truths [n] of the sequences, and samples [S, n] of all."""
    lengths = [len(truth) for truth in truths]
    if [len(values) for values in found] != lengths:
        raise InputError(
            f"{name}: {[len(values) for values in found]} log probabilities, the truth has"
            f" {lengths}"
        )
    return TokenLogprobs(
        name,
        steady=steady,
        free=free,
        found=torch.tensor([value for values in found for value in values]).double(),
        truth=torch.cat(truths).double(),
        positions=torch.cat([torch.arange(1, length + 1) for length in lengths]),
        requests=torch.repeat_interleave(torch.tensor(lengths)),
    )


def of_prompts(checkpoint: Path, found: dict[str, Any], cache: str) -> Judgement:
    """The tokens of the prompts, whose truth stands beside the checkpoint."""
    sequences = random_model.load_truth(checkpoint)["sequences"]
    return logprobs.judged(tokens_of(sequences, found["logprobs"], cache, "prompt tokens"))


def of_generated(checkpoint: Path, found: dict[str, Any], cache: str) -> Judgement:
    """The tokens that an engine generated: the reference is teacher forced on them, now."""
    truth = random_model.load_truth(checkpoint)
    model = random_model.build(truth["architecture"], truth["seed"])
    sequences = []
    for number, (sequence, generated) in enumerate(
        zip(truth["sequences"], found["generated"], strict=True)
    ):
        full = random_model.with_spread(
            model, sequence["tokens"] + generated, truth["seed"] + number, (cache,)
        )
        first = len(sequence["tokens"]) - 1
        part = {
            kind: [sample[first:] for sample in full[cache][kind]] for kind in ("steady", "free")
        }
        sequences.append({"logprobs": full["logprobs"][first:], cache: part})
    return logprobs.judged(
        tokens_of(sequences, found["generated_logprobs"], cache, "generated tokens")
    )


def along_decisions(
    checkpoint: Path, found: dict[str, Any], cache: str, *, generated: bool
) -> Judgement | None:
    """The tokens of the prompts, or the generated ones, beside the reference with the engine's
    decisions.

    None if a decision was not recorded: another one in its place may move all later tokens.
    """
    truth = random_model.load_truth(checkpoint)
    model = random_model.build(truth["architecture"], truth["seed"])
    prompts = [sequence["tokens"] for sequence in truth["sequences"]]
    name, kind, more = "prompt tokens", "", [[] for _ in prompts]
    if generated:
        name, kind, more = "generated tokens", "generated_", found["generated"]
    followed, firsts = [], []
    for number, (prompt, tokens) in enumerate(zip(prompts, more, strict=True)):
        ids = unpacked(found[f"{kind}decisions"][number])
        followed.append(replayed.follow(model, prompt + tokens, ids, truth["seed"] + number, cache))
        firsts.append(len(prompt) - 1 if generated else 0)
    if any(one.num_unknown for one in followed):
        return None
    truths, samples = (
        [getattr(one, part)[..., first:] for one, first in zip(followed, firsts, strict=True)]
        for part in ("truth", "samples")
    )
    tokens_beside = beside(
        truths, found[f"{kind}logprobs"], name, steady=torch.cat(samples, dim=1), free=None
    )
    judgement = logprobs.judged(tokens_beside)
    judgement.findings = [*replayed.findings(followed, name), *judgement.findings]
    judgement.notes += replayed.summary(followed, name)
    return judgement


def judged(checkpoint: Path, found: dict[str, Any], cache: str, *, generated: bool) -> Judgement:
    """The judgement of the prompts or of the generated tokens, along the engine's decisions if they
    were recorded.
    """
    is_recorded = any(found.get("generated_decisions" if generated else "decisions", ()))
    if is_recorded and (
        judgement := along_decisions(checkpoint, found, cache, generated=generated)
    ):
        return judgement
    judgement = (of_generated if generated else of_prompts)(checkpoint, found, cache)
    if is_recorded:
        judgement.notes.append("not all decisions were recorded, so none is replayed")
    return judgement


def main(parent: Parent) -> None:
    """Judge a file; each finding and note is a line."""
    request = parent.request(JudgedLogprobs)
    if request is None:
        return
    checkpoint, found = Path(request.checkpoint), json.loads(Path(request.found).read_text())
    num_findings = 0
    for generated in (False, True) if request.generated else (False,):
        judgement = judged(checkpoint, found, request.cache, generated=generated)
        num_findings += len(judgement.findings)
        lines = [
            *(f"fail  {finding.message} at {finding.where}" for finding in judgement.findings),
            *judgement.notes,
        ]
        lines.append(
            f"{judgement.looked_at} {'generated' if generated else 'prompt'} tokens judged"
        )
        for line in lines:
            parent.reply(Reply(progress={"line": line}))
    for problem in found.get("not_recorded", ()):
        parent.reply(Reply(progress={"line": f"not recorded: {problem}"}))
    parent.reply(Reply(result={"findings": num_findings}))


if __name__ == "__main__":
    run_child(main)
