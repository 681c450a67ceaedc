"""What an engine said of a random checkpoint's tokens, judged by the oracle `logprobs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from canaries import logprobs, random_model
from canaries.canary_requests import JudgedLogprobs
from canaries.logprobs import TokenLogprobs
from harness.core.errors import InputError
from harness.run.protocol import Parent, Reply, run_child


def tokens_of(sequences: list[dict[str, Any]], found: list[list[float]], cache: str, name: str) -> TokenLogprobs:
    """The log probabilities `found` of an engine beside the truths. Raises InputError if their counts differ."""
    lengths = [len(sequence["logprobs"]) for sequence in sequences]
    if [len(values) for values in found] != lengths:
        raise InputError(f"{name}: {[len(values) for values in found]} log probabilities, the truth has {lengths}")
    samples = {
        kind: torch.cat([torch.tensor(sequence[cache][kind]).double() for sequence in sequences], dim=1)
        for kind in ("steady", "free")
    }
    return TokenLogprobs(
        name,
        torch.tensor([value for values in found for value in values]).double(),
        torch.tensor([value for sequence in sequences for value in sequence["logprobs"]]).double(),
        samples["steady"],
        samples["free"],
        torch.cat([torch.arange(1, length + 1) for length in lengths]),
    )


def of_generated(checkpoint: Path, found: dict[str, Any], cache: str) -> TokenLogprobs:
    """The tokens that an engine generated: the reference is teacher forced on them, now."""
    truth = random_model.load_truth(checkpoint)
    model = random_model.build(truth["architecture"], truth["seed"])
    sequences = []
    for number, (sequence, generated) in enumerate(zip(truth["sequences"], found["generated"], strict=True)):
        full = random_model.with_spread(model, sequence["tokens"] + generated, truth["seed"] + number, (cache,))
        first = len(sequence["tokens"]) - 1
        part = {kind: [sample[first:] for sample in full[cache][kind]] for kind in ("steady", "free")}
        sequences.append({"logprobs": full["logprobs"][first:], cache: part})
    return tokens_of(sequences, found["generated_logprobs"], cache, "generated tokens")


def main(parent: Parent) -> None:
    """Judge a file; each finding and note is a line."""
    request = parent.request(JudgedLogprobs)
    if request is None:
        return
    checkpoint, found = Path(request.checkpoint), json.loads(Path(request.found).read_text())
    sequences = random_model.load_truth(checkpoint)["sequences"]
    sets = [tokens_of(sequences, found["logprobs"], request.cache, "prompt tokens")]
    if request.generated:
        sets.append(of_generated(checkpoint, found, request.cache))
    num_findings = 0
    for tokens in sets:
        judgement = logprobs.judged(tokens)
        num_findings += len(judgement.findings)
        lines = [*(f"fail  {finding.message} at {finding.where}" for finding in judgement.findings), *judgement.notes]
        lines.append(f"{judgement.looked_at} {tokens.name} judged")
        for line in lines:
            parent.reply(Reply(progress={"line": line}))
    parent.reply(Reply(result={"findings": num_findings}))


if __name__ == "__main__":
    run_child(main)
