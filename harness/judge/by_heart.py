"""Drafters that know a case's answers by heart, so that each refused draft is an error and no bad
guess.

The module's layer has random weights. Only its output head is fitted, in closed form, to the
answers of the float64 model: fewer tokens than the width of the hidden state, so each can be met.
"""

from __future__ import annotations

import copy
import functools

import torch
from torch import Tensor

from harness.core.engine_params import EngineParams
from harness.engine.model.next_token import NextTokenModule
from harness.engine.model.transformer import CausalLM
from harness.evidence.counts import Count
from harness.judge.dense_reference import DenseReference
from harness.judge.probes.answers import Answers

MODULE_SEED = 1
LOGIT = 12.0
"""The logit of a token that the module knows; of the others it is 0."""
RIDGE = 1e-4
"""The share of the features' mean square that the fit adds, so that rounding in the engine is not
amplified.
"""


@functools.cache
def knows_by_heart(
    model: CausalLM, kind: str, requests: tuple[tuple[tuple[int, ...], int], ...]
) -> NextTokenModule:
    """The module for `requests`, pairs of a prompt and the number of tokens to generate."""
    module = NextTokenModule(model.config, "eagle" if kind == "eagle" else "mtp").reset_parameters(
        MODULE_SEED
    )
    features = []
    wanted = []
    with torch.no_grad():
        # In float64, so that the answers are those of the reference and no near tie is decided by
        # rounding.
        target = copy.deepcopy(model).double()
        wide = copy.deepcopy(module).double()
        for prompt, count in requests:
            tokens = list(prompt)
            for _ in range(count):
                tokens.append(int(target(torch.tensor([tokens]))[0, -1].argmax()))
            known = torch.tensor([tokens])
            made = wide.features(
                target.hidden_states(known[:, :-1]), target.embed_tokens(known[:, 1:])
            )[0]
            # The row of position p guesses token p + 2; the first guess is behind the first
            # generated token.
            features.append(made[len(prompt) - 1 : len(tokens) - 2])
            wanted += tokens[len(prompt) + 1 :]
        rows = torch.cat(features)
        goal = torch.zeros(len(wanted), model.config.vocab_size, dtype=torch.float64)
        goal[torch.arange(len(wanted)), wanted] = LOGIT
        ridge = RIDGE * float(rows.square().mean()) * len(rows)
        # By the products of rows: there are fewer rows than features.
        weight = rows.T @ torch.linalg.solve(
            rows @ rows.T + ridge * torch.eye(len(rows)).double(), goal
        )
        module.head.weight.copy_(weight.T)
    return module.eval().requires_grad_(False)


def drafted_beside_reference(
    module: NextTokenModule,
    reference: DenseReference,
    answers: Answers,
    requests: list[tuple[int, list[int]]],
) -> tuple[list[Tensor], list[Tensor], str]:
    """The draft logits [vocab] of all `requests` (number, tokens), the float64 reference's, and a
    word for a row.
    """
    wide = copy.deepcopy(module).double()
    ranges = []
    found: list[Tensor] = []
    expected: list[Tensor] = []
    with torch.no_grad():
        for request, tokens in requests:
            hidden = reference.model.hidden_states(torch.tensor([tokens[:-1]]))
            embedded = reference.model.embed_tokens(torch.tensor([tokens[1:]]))
            logits = wide.head(wide.features(hidden, embedded))[0]
            rows = answers.drafted.get(request, [])
            ranges.append(f"request {request} has {len(found)}-{len(found) + len(rows) - 1}")
            found += [row for _, row in rows]
            expected += [logits[position] for position, _ in rows]
    return found, expected, f"draft ({', '.join(ranges)})"


def counts_of_drafts(params: EngineParams, answers: Answers) -> list[Count]:
    """Each draft that a step verified is the token that the target chose."""
    layer = len(params.layers)
    found = []
    for step, request, position, draft, token in answers.verified:
        name = f"draft of request {request} for position {position}"
        where = f"step {step}, layer {layer}"
        found.append(Count(name, token, draft, where, "acceptance"))
    return found
