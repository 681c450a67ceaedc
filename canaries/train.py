"""Trains a canary: a tiny model memorizes the worked answers of fixed questions.

As a module, it is the child of `mla-harness canary train`.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from canaries import card, check, tasks, tokenizer
from canaries.canary_requests import TrainCanary
from canaries.recipe import Recipe, default_recipe, model_config
from canaries.tokenizer import IGNORED, Examples, encode
from harness.core.errors import InputError
from harness.engine.model import checkpoint
from harness.engine.model.kda import KimiDeltaAttention
from harness.engine.model.mla import CacheTransform
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import EngineModelConfig
from harness.run.protocol import Parent, Reply, run_child

Progress = Callable[[str], None]

# The checks of every canary: name in reports, dtype of weights and activations, transform of the
# cache.
CHECKS: tuple[tuple[str, torch.dtype, CacheTransform | None], ...] = (
    ("float32", torch.float32, None),
    ("bfloat16", torch.bfloat16, None),
    ("bfloat16, fp8 cache, scale 1", torch.bfloat16, check.fp8_cache(1.0)),
    ("bfloat16, fp8 cache, scale from the largest value", torch.bfloat16, check.fp8_cache(None)),
)


def train(
    task: str,
    out: str | Path,
    architecture: str = "deepseek_v2",
    minutes: float = 3.0,
    device: str = "auto",
    seed: int = 0,
    *,
    num_experts: int = 0,
    limit: int | None = None,
    recipe: Recipe | None = None,
    config: EngineModelConfig | None = None,
    progress: Progress = print,
) -> card.Trained:
    """Train on `task` (a name, `all`, or a .jsonl file), check, and write a checkpoint with its
    card to `out`.

    Runs for `recipe.steps` steps or `minutes`, whichever ends first. The same seed, device and
    number of steps give the same weights, as far as the device's kernels are deterministic.
    `config` replaces the architecture's sizes; its vocabulary must hold the tokenizer's.
    `num_experts` gives every layer routed experts. `limit` keeps the first questions.

    Raises `ValueError` for an unknown task, architecture, device, or number of experts.
    """
    recipe = recipe or default_recipe(architecture, num_experts)
    config = config or model_config(architecture, num_experts)
    device = resolve_device(device)
    questions = tasks.load(task)[:limit]
    texts = [question.prompt + question.completion for question in questions]
    words = tokenizer.train(texts, config.vocab_size)
    examples = encode(questions, words, device)
    model = CausalLM(config).reset_parameters(seed, logit_std=1.0).to(device)
    if recipe.kda_half_lives is not None:
        limit_memory(model, recipe.kda_half_lives)
    progress(
        f"{len(questions)} questions, {sum(p.numel() for p in model.parameters()):,} weights,"
        f" {device}"
    )

    started = time.monotonic()
    steps = _optimise(model, examples, recipe, seed, minutes * 60.0, progress)
    seconds = time.monotonic() - started

    # The rounded weights are saved and checked.
    model = model.to(torch.bfloat16).eval().requires_grad_(False)
    out = Path(out)
    tokenizer.save(words, out)
    checkpoint.save(model, out)
    names = [question.id.rsplit("-", 1)[0] for question in questions]
    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    checks = (accuracy(out, examples, names, device), sabotaged(out, examples, device))
    result = card.Trained(out, config, recipe, seed, steps, seconds, gpu, len(questions), *checks)
    for name, by_task in result.accuracy.items():
        progress(f"{name}: " + ", ".join(f"{task} {value:.4f}" for task, value in by_task.items()))
    progress(
        "sabotaged: " + ", ".join(f"{name} {value:.4f}" for name, value in result.sabotaged.items())
    )
    (out / "README.md").write_text(card.render(result), encoding="utf-8")
    return result


def resolve_device(device: str) -> str:
    """The device; `auto` is CUDA where there is a GPU.

    Raises `ValueError` for a device that is not there.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ValueError(
            f"no device {device!r} here: use auto, cpu or cuda (where PyTorch finds a GPU)"
        )
    return device


def accuracy(
    directory: Path, examples: Examples, names: list[str], device: str
) -> dict[str, dict[str, float]]:
    """Share of exact answers of the checkpoint in `directory`, by check and task.

    `names` has each row's task.
    """
    result: dict[str, dict[str, float]] = {}
    for title, dtype, transform in CHECKS:
        model = checkpoint.load(directory, dtype, device)
        with check.cache_transform(model, transform):
            exact = check.exact_answers(model, examples)[0].tolist()
        by_task: dict[str, list[bool]] = {}
        for name, right in zip(names, exact, strict=True):
            by_task.setdefault(name, []).append(right)
        result[title] = {name: sum(rights) / len(rights) for name, rights in by_task.items()}
    return result


def sabotaged(directory: Path, examples: Examples, device: str) -> dict[str, float]:
    """Share of exact answers in float32 under each of `check.SABOTAGES`."""
    model = checkpoint.load(directory, torch.float32, device)
    result = {}
    for name, transform in check.SABOTAGES.items():
        with check.cache_transform(model, transform):
            result[name] = check.exact_answers(model, examples)[0].float().mean().item()
    if model.config.num_experts:
        with check.ids_transform(model, check.low_and_high_words):
            exact = check.exact_answers(model, examples)[0]
        result["64-bit expert ids read as 32-bit ones"] = exact.float().mean().item()
    return result


@torch.no_grad()
def limit_memory(model: CausalLM, half_lives: tuple[float, ...]) -> None:
    """Set the decay of each KDA head near its half-life in tokens, and freeze it.

    The gate still depends on the token, through frozen random projections. Raises `ValueError` when
    the numbers of half-lives and heads differ.
    """
    for layer in (layer.self_attn for layer in model.layers):
        if not isinstance(layer, KimiDeltaAttention):
            continue
        if len(half_lives) != layer.num_heads:
            raise ValueError(
                f"kda_half_lives has {len(half_lives)} entries for {layer.num_heads} heads"
            )
        rates = torch.tensor([math.log(2.0) / tokens for tokens in half_lives])
        layer.A_log.zero_()
        layer.dt_bias.copy_(rates.expm1().log().repeat_interleave(layer.head_dim))
        layer.f_b_proj.weight.mul_(0.5)
        for frozen in (layer.A_log, layer.dt_bias, layer.f_a_proj.weight, layer.f_b_proj.weight):
            frozen.requires_grad_(False)


def learning_rate(recipe: Recipe, step: int, time_used: float) -> float:
    """Linear warm-up, then a cosine to zero at the last step, or at `time_used` 1 if that is
    first.
    """
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    done = min(1.0, max(step / recipe.steps, time_used))
    return recipe.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))


def noise(strength: float, generator: torch.Generator) -> CacheTransform:
    """A cache transform that adds Gaussian noise of `strength` times each row's root mean
    square.
    """

    def transform(kv_c: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
        """kv_c [..., R] and k_pe [..., E] with noise."""

        def disturb(x: Tensor) -> Tensor:
            """x [..., D] with noise of its own scale."""
            rms = x.detach().square().mean(dim=-1, keepdim=True).sqrt()
            return x + strength * rms * torch.randn(
                x.shape, generator=generator, device=x.device, dtype=x.dtype
            )

        return disturb(kv_c), disturb(k_pe)

    return transform


def answer_loss(model: CausalLM, batch: Examples) -> Tensor:
    """Cross entropy of the answers' tokens, the mean over the batch; a scalar float32."""
    wanted = batch.labels != IGNORED
    logits = model.compute_logits(model.hidden_states(batch.tokens)[wanted])
    return F.cross_entropy(logits.float(), batch.labels[wanted])


def _optimise(
    model: CausalLM,
    examples: Examples,
    recipe: Recipe,
    seed: int,
    seconds: float,
    progress: Progress,
) -> int:
    """Train in place; returns the number of steps made."""
    device = examples.tokens.device
    # Norms, biases and decay rates must keep their size: only matrices and convolutions decay.
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() in (2, 3)]
    kept = [p for p in trained if p.dim() not in (2, 3)]
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas)
    generator = torch.Generator(device).manual_seed(seed)
    batches = _shuffled(examples, recipe, seed)
    started = time.monotonic()
    model.train()
    with check.cache_transform(model, noise(recipe.latent_noise, generator)):
        for step in range(recipe.steps):
            used = (time.monotonic() - started) / seconds
            if used >= 1.0:
                progress(f"time is up after {step} of {recipe.steps} steps")
                return step
            rate = learning_rate(recipe, step, used)
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = answer_loss(model, next(batches))
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(trained, recipe.gradient_clip)
            optimizer.step()
            if step % recipe.check_every == 0 or step == recipe.steps - 1:
                right = _right_now(model, examples)
                elapsed = time.monotonic() - started
                progress(f"step {step}: loss {loss.item():.5f}, exact {right:.4f}, {elapsed:.0f} s")
    return recipe.steps


def _right_now(model: CausalLM, examples: Examples) -> float:
    """Share of exact answers of the weights, rounded to bfloat16, without noise."""
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    with check.cache_transform(rounded, None):
        return check.exact_answers(rounded, examples, 256)[0].float().mean().item()


def _shuffled(examples: Examples, recipe: Recipe, seed: int) -> Iterator[Examples]:
    """Endless batches.

    Every epoch has a new order, which depends on the seed and not on the device.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = examples.lengths.cpu()
    while True:
        order = torch.randperm(len(examples), generator=generator)
        for window in torch.split(order, recipe.batch_size * recipe.length_window):
            if recipe.length_window > 1:
                window = window[lengths[window].argsort()]
            for rows in torch.split(window, recipe.batch_size):
                yield examples.take(rows.to(examples.tokens.device))


def main(parent: Parent) -> None:
    """Train; each line of progress is a reply. Raises InputError for bad input."""
    request = parent.request(TrainCanary)
    if request is None:
        return
    try:
        train(
            **request.model_dump(),
            progress=lambda line: parent.reply(Reply(progress={"line": line})),
        )
    except ValueError as error:
        raise InputError(f"canary train: {error}") from error
    parent.reply(Reply(result={}))


if __name__ == "__main__":
    run_child(main)
