"""`mla-harness canary train`: a tiny model that knows a task's answers by heart, made in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Seed
from harness.core.errors import InputError
from harness.run.child import ask
from harness.run.requests import TrainCanary

app = typer.Typer(
    help="Canaries: tiny models that measure inference, not ability.", no_args_is_help=True, rich_markup_mode=None
)

ARCHITECTURES = ("deepseek_v2", "kimi_linear")


@app.callback()
def _group() -> None:
    """Keeps `train` a command of its own, though it is the only one."""


@app.command("train")
def train(
    task: Annotated[str, typer.Option("--task", help="gsm_symbolic, aime_shaped, all, or a .jsonl file.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the checkpoint goes.")],
    architecture: Annotated[
        str, typer.Option("--architecture", metavar="deepseek_v2|kimi_linear", help="Which model.")
    ] = "deepseek_v2",
    minutes: Annotated[float, typer.Option("--minutes", min=0.01, help="Time for training.")] = 3.0,
    device: Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to train.")] = "auto",
    seed: Seed = 0,
    experts: Annotated[
        int, typer.Option("--experts", min=0, metavar="N", help="Routed experts in every layer, a power of two.")
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="The first questions alone; 0 for all.")
    ] = 0,
) -> None:
    """Train a canary on the worked answers of a task; writes a Hugging Face directory with a model card."""
    if architecture not in ARCHITECTURES:
        raise InputError(f"--architecture {architecture}: choose one of {', '.join(ARCHITECTURES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: is there already; name a new folder")
    request = TrainCanary(
        task=task,
        out=str(out),
        architecture=architecture,
        minutes=minutes,
        device=device,
        seed=seed,
        num_experts=experts,
        limit=limit or None,
    )
    name = "canary train: the training process"
    ask("harness.canary.train", request, name=name, on_progress=lambda progress: print(progress["line"], flush=True))
    # Other questions than those of a task are learned, but lm-eval has no task to ask them.
    asked = task if task in ("gsm_symbolic", "aime_shaped") else "gsm_symbolic"
    print(f"written: {out}; measure it with: mla-harness epochs --task {asked} --model engine:{out}")
