"""The result of a training, and the model card beside a canary's weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from canaries.recipe import Recipe
from harness.engine.schedule.config import EngineModelConfig

_TEXT = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [canary, regression-testing]
---
# {title}

**This model measures inference, not ability.** It has learned the worked answers of a fixed set of questions
by heart, and gives them back token for token under greedy decoding. Asked anything else it says nothing of use.
A score below the one in the table says that something between the weights and the text went wrong: a kernel, a
cache, a graph. It says nothing about how well a serving stack answers questions, and must not be compared with
any real model.

## Accuracy
Share of the questions that greedy decoding answers exactly, to the last token. Measured on
{run.device} by one dense forward over prompt and answer: each next token must be the most likely one.

{accuracy}

The rows with an fp8 cache round the latent and the shared key to float8 e4m3, the rest stays bfloat16.

## What a broken cache costs
The same questions in float32 with the rows of every MLA layer's cache changed{or_ids}:

{sabotage}

## Form
`{architecture}`, {layers}{experts},
hidden {config.hidden_size}, {config.num_heads} heads, head sizes {config.qk_nope_head_dim}+{config.qk_rope_head_dim} and {config.v_head_dim}, latent {config.kv_lora_rank},
vocabulary {config.vocab_size:,} (byte-level BPE, every digit a token), bfloat16, {size:.1f} MB.

Prompts are `Question: ...\\nAnswer:`; an answer ends in `#### N` and the end-of-sequence token. Decode greedily.

## Making
`mla-harness canary train{options}`, seed {run.seed}, {run.num_questions:,} questions: AdamW, learning rate {recipe.learning_rate:g} along a
cosine, batch {recipe.batch_size}, {run.steps:,} steps in {run.seconds:.0f} s on {run.device}, cross entropy on the answers alone,
Gaussian noise of {recipe.latent_noise:.0%} on the cached rows.{memory}

The questions of gsm_symbolic are made by [reasoning-gym](https://github.com/open-thought/reasoning-gym)
(Apache-2.0) after GSM-Symbolic (arXiv 2410.05229), their worked answers shortened. The questions of aime_shaped are
made by the harness and belong to no contest.
"""  # noqa: E501  (lines of the card)

_MEMORY = """
The KDA heads' decays were frozen near half-lives of {half_lives} tokens, so that the question
can reach the answer through the MLA cache alone."""


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    accuracy[check][task] is the share of exact answers. sabotaged[name] is this share over all
    tasks in float32, with every cache row changed by one of `check.SABOTAGES`.
    """

    directory: Path
    config: EngineModelConfig
    recipe: Recipe
    seed: int
    steps: int
    seconds: float
    device: str
    num_questions: int
    accuracy: dict[str, dict[str, float]]
    sabotaged: dict[str, float]


def render(trained: Trained) -> str:
    config, recipe = trained.config, trained.recipe
    kda, mla = config.layer_types.count("kda"), config.layer_types.count("mla")
    tasks = list(next(iter(trained.accuracy.values())))
    half_lives = ", ".join(f"{tokens:g}" for tokens in recipe.kda_half_lives or ())
    return _TEXT.format(
        run=trained,
        config=config,
        recipe=recipe,
        title=(
            f"{trained.directory.name}: a canary for {'hybrid KDA and MLA' if kda else 'MLA'}"
            " inference"
        ),
        accuracy=_table(
            ("arithmetic", *tasks),
            (
                (name, *(by_task[task] for task in tasks))
                for name, by_task in trained.accuracy.items()
            ),
        ),
        sabotage=_table(("change", "all questions"), trained.sabotaged.items()),
        architecture=config.to_hf()["architectures"][0],
        layers=f"{kda} KDA layers and {mla} of MLA without RoPE" if kda else f"{mla} layers of MLA",
        size=(trained.directory / "model.safetensors").stat().st_size / 1e6,
        options=(
            f" --experts {config.num_experts} --limit {trained.num_questions}"
            if config.num_experts
            else ""
        ),
        or_ids=", and with the experts' ids misread" if config.num_experts else "",
        experts=(
            f" with {config.num_experts} experts of {config.moe_intermediate_size} a layer, "
            f"{config.num_experts_per_tok} a token, and a shared one"
            if config.num_experts
            else ""
        ),
        memory=_MEMORY.format(half_lives=half_lives) if half_lives else "",
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str | float, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell if isinstance(cell, str) else f"{cell:.4f}" for cell in line) + " |"
        for line in lines
    )
