"""Measures canary-dsa with transformers' own DeepSeek V3.2: the share of right answers under a
right and a wrong top-k.

    python -m canaries.recall_check fixtures/canary-dsa [--device cuda] [--limit N] [--small] [--out
    FILE]

One forward over prompt and answer shows what greedy decoding gives, as in `canaries/check.py`. A
row of the table is a change of the top-k in both layers, in the first, or in the second. With
`--small` the rows are small errors like those of `benchmarks/vllm_faults.py`, which only `canary
logprobs` shows, on the shorter task: a CPU does it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from canaries import recall
from canaries.tasks import Question

BLOCK = 64
E4M3_MAX = 448.0
Change = Callable[[Tensor, Tensor], Tensor]
"""Chosen tokens [B, S, k] int and the place [S] of each query -> the tokens to attend to."""


def _random(chosen: Tensor, places: Tensor) -> Tensor:
    generator = torch.Generator(chosen.device).manual_seed(0)
    drawn = torch.rand(chosen.shape, generator=generator, device=chosen.device)
    return (drawn * (places[:, None] + 1)).long()


def _latest(chosen: Tensor, places: Tensor) -> Tensor:
    return (
        (places[:, None] - torch.arange(chosen.shape[-1], device=chosen.device))
        .clamp(min=0)
        .expand_as(chosen)
    )


def _half(chosen: Tensor, places: Tensor) -> Tensor:
    first = chosen[..., : max(1, chosen.shape[-1] // 2)]
    return torch.cat((first, first), -1)


CHANGES: dict[str, Change] = {
    "the right top-k": lambda chosen, places: chosen,
    "random tokens": _random,
    "the latest tokens": _latest,
    "each token one block of 64 too late": lambda chosen, places: torch.minimum(
        chosen + BLOCK, places[:, None]
    ),
    "each token one too early": lambda chosen, places: (chosen - 1).clamp(min=0),
    "the better half of the top-k": _half,
}


def _least_lost(chosen: Tensor, places: Tensor) -> Tensor:
    return torch.cat((chosen[..., :1], chosen[..., :-1]), -1)


def load(
    folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu", topk: int | None = None
) -> Any:
    """transformers' model of the checkpoint; `topk` replaces its index_topk."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    # `to` would round the frequencies of the rotary embedding too.
    for layer in (model.model.embed_tokens, model.model.layers, model.model.norm, model.lm_head):
        layer.to(dtype)
    choose(model, topk or model.config.index_topk)
    return model.to(device)


def choose(model: Any, topk: int) -> None:
    """Let each indexer choose `topk` tokens."""
    for layer in model.model.layers:
        layer.self_attn.indexer.index_topk = topk


@contextmanager
def changed(model: Any, change: Change, layers: Sequence[int] = (0, 1)) -> Iterator[None]:
    """Inside the block the indexers of `layers` choose what `change` makes of their choice."""

    def hook(module: Any, args: Any, output: Tensor) -> Tensor:
        """output [B, S, k] int32, changed."""
        places = torch.arange(output.shape[1], device=output.device)
        return change(output.long(), places).to(output.dtype)

    handles = [model.model.layers[n].self_attn.indexer.register_forward_hook(hook) for n in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _wrong_scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.05


def _wrong_epsilon(model: Any) -> None:
    for module in model.model.layers[1].modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-5


def _wrong_rope(model: Any) -> None:
    def hook(module: Any, args: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Cosines and sines [B, S, D], those of position 201 at 200 too."""
        for part in output:
            part[:, 200] = part[:, 201]
        return output

    model.model.rotary_emb.register_forward_hook(hook)


SMALL: dict[str, Callable[[Any], None]] = {
    "softmax scale 5 % off": _wrong_scale,
    "epsilon 1e-5 for 1e-6": _wrong_epsilon,
    "position 200 rotated as 201": _wrong_rope,
}


@contextmanager
def rounded(model: Any) -> Iterator[None]:
    """Inside the block stored latents, and the queries and keys of indexers, are rounded to e4m3
    with a scale a row.
    """

    def hook(module: Any, args: Any, output: Tensor) -> Tensor:
        """output [..., D], rounded."""
        unit = output.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / E4M3_MAX
        return ((output.float() / unit).to(torch.float8_e4m3fn).float() * unit).to(output.dtype)

    names = ("kv_a_layernorm", "indexer.k_norm", "indexer.wq_b")
    modules = [module for name, module in model.named_modules() if name.endswith(names)]
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def is_right(model: Any, question: Question) -> bool:
    """Whether greedy decoding answers the question to its last token."""
    words = recall.tokenizer()
    prompt, answer = words.encode(question.prompt).ids, [*words.encode(question.completion).ids, 0]
    tokens = torch.tensor([prompt + answer], device=model.device)
    with torch.no_grad():
        logits = model(tokens, logits_to_keep=len(answer) + 1).logits[0, :-1]
    return logits.argmax(-1).tolist() == answer


def share(model: Any, questions: Sequence[Question]) -> float:
    """The share of right answers."""
    return sum(is_right(model, question) for question in questions) / len(questions)


def table(
    folder: Path, device: str, limit: int, is_small: bool, progress: Callable[[str], None]
) -> None:
    """Report the rows of a table, one by one: change, and the share of right answers of each
    task.
    """
    sizes = {"recall": 512} if is_small else {"recall": 512, "recall_long": 2048}
    tasks = {name: recall.questions(*recall.TASKS[name])[-limit:] for name in sizes}
    progress(
        "| top-k, layers |"
        f" {' | '.join(f'{name} ({len(asked)})' for name, asked in tasks.items())} |"
    )
    progress("| --- " * (1 + len(tasks)) + "|")

    def row(title: str, model: Any, topk: dict[str, int]) -> None:
        cells = []
        for name, asked in tasks.items():
            choose(model, topk[name])
            cells.append(f"{share(model, asked):.4f}")
        progress(f"| {title} | {' | '.join(cells)} |")

    model = load(folder, torch.float32, device)
    if is_small:
        row("nothing, float32", model, sizes)
        with changed(model, _least_lost, (1,)):
            row("the least of the top-k lost, float32", model, sizes)
        for name, break_it in SMALL.items():
            model = load(folder, torch.float32, device)
            break_it(model)
            row(f"{name}, float32", model, sizes)
        return
    row("every token, float32", model, dict.fromkeys(tasks, 10**6))
    for name, change in CHANGES.items():
        for layers in ((0, 1), (0,), (1,)):
            if layers == (0, 1) or name != "the right top-k":
                with changed(model, change, layers):
                    row(f"{name}, {' and '.join(map(str, layers))}, float32", model, sizes)
    model = load(folder, torch.bfloat16, device)
    row("the right top-k, bfloat16", model, sizes)
    with rounded(model):
        row("the right top-k, bfloat16, latents and index in e4m3", model, sizes)


def main() -> None:
    """Print the table, and write it to --out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--limit", type=int, default=100, help="only the last N questions of each task, the longest"
    )
    parser.add_argument(
        "--small", action="store_true", help="small errors in place of a wrong top-k"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines: list[str] = []

    def progress(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if args.out:
            args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")

    table(args.folder, args.device, args.limit, args.small, progress)


if __name__ == "__main__":
    main()
