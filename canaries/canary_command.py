"""`mla-harness canary`: train tiny models, write random ones, and judge log probabilities, each in
a child process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from canaries.canary_requests import JudgedLogprobs, RandomCanary, TrainCanary, WrittenGguf
from harness.cli.commands import Command, new_app
from harness.cli.option_records import with_options
from harness.cli.shared_options import Seed
from harness.core.checkout import ROOT, on_path
from harness.core.errors import InputError
from harness.core.extras import ACCURACY, require
from harness.run.child import ask

app = new_app(help="Train canaries: tiny models that measure inference, not ability.")

ARCHITECTURES = ("deepseek_v2", "kimi_linear")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `mla-harness canary train`."""

    task: Annotated[
        str,
        typer.Option(
            "--task", metavar="TASK", help="gsm_symbolic, aime_shaped, all, or a .jsonl file."
        ),
    ]
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the checkpoint.")]
    architecture: Annotated[
        str, typer.Option(metavar="deepseek_v2|kimi_linear", help="Kind of model.")
    ] = "deepseek_v2"
    minutes: Annotated[
        float, typer.Option(metavar="N", min=0.01, help="Time for training, in minutes.")
    ] = 3.0
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to train.")] = "auto"
    seed: Seed = 0
    num_experts: Annotated[
        int,
        typer.Option(
            "--experts",
            min=0,
            metavar="N",
            help="Routed experts in each layer: 0 or a power of two.",
        ),
    ] = 0
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Only the first N questions; 0 for all.")
    ] = 0


@app.command("train", cls=Command)
@with_options(TrainOptions)
def train(context: typer.Context, given: TrainOptions) -> None:
    """Train a canary on the answers of a task.

    Writes a Hugging Face directory with a model card.
    """
    require(ACCURACY)
    if given.architecture not in ARCHITECTURES:
        raise InputError(
            f"--architecture {given.architecture}: choose one of {', '.join(ARCHITECTURES)}"
        )
    out = _new_folder(given.out)
    request = TrainCanary.model_validate(asdict(given) | {"out": out, "limit": given.limit or None})
    ask(
        "canaries.train",
        request,
        name="the training process",
        environ=on_path(ROOT),
        on_progress=_print,
    )
    # lm-eval has no task for the questions of other files.
    asked = given.task if given.task in ("gsm_symbolic", "aime_shaped") else "gsm_symbolic"
    print(
        f"written: {out}; measure it with: mla-harness epochs --task {asked} --model engine:{out}"
    )


def _new_folder(out: Path) -> str:
    """The folder of --out. Raises InputError if it holds something."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: is there already; name a new folder")
    return str(out)


def _print(progress: dict[str, Any]) -> None:
    print(progress["line"], flush=True)


@app.command("random", cls=Command)
def random(
    architecture: Annotated[
        str, typer.Argument(metavar="ARCH", help="An architecture of transformers: deepseek_v32.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the checkpoint.")],
    seed: Seed = 0,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Without how far rounding moves each token, which takes minutes."
        ),
    ] = False,
) -> None:
    """Write a tiny checkpoint with random weights, and its truth by transformers on a CPU.

    The truth is the log probability of each token of some prompts in float32, and how far rounding
    moves it.
    """
    require(("transformers",))
    request = RandomCanary(architecture=architecture, out=_new_folder(out), seed=seed, quick=quick)
    ask(
        "canaries.random_model",
        request,
        name="the reference",
        environ=on_path(ROOT),
        on_progress=_print,
    )


@app.command("logprobs", cls=Command)
def logprobs(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="DIR", help="A checkpoint that `canary random` wrote.")
    ],
    found: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON: `logprobs`, `decisions`: lists by prompt.")
    ],
    cache: Annotated[
        str, typer.Option(metavar="bf16|fp8", help="Type of the engine's cache.")
    ] = "bf16",
    generated: Annotated[
        bool,
        typer.Option(
            "--generated",
            help="Judge `generated` tokens and `generated_logprobs` too; takes minutes.",
        ),
    ] = False,
) -> None:
    """Judge the log probabilities of an engine by the truth of a random checkpoint."""
    require(("transformers",))
    for path in (checkpoint, found):
        if not path.exists():
            raise InputError(f"{path}: is not there")
    if cache not in ("bf16", "fp8"):
        raise InputError(f"--cache {cache}: choose bf16 or fp8")
    request = JudgedLogprobs(
        checkpoint=str(checkpoint), found=str(found), cache=cache, generated=generated
    )
    result = ask(
        "canaries.judge_logprobs",
        request,
        name="the oracle",
        environ=on_path(ROOT),
        on_progress=_print,
    )
    if result["findings"]:
        raise typer.Exit(1)


@app.command("gguf", cls=Command)
def gguf(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="DIR", help="A canary: a DeepSeek V2, V3 or V3.2.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="New file, such as mla.gguf.")],
    kind: Annotated[
        str, typer.Option("--type", metavar="bf16|f16|f32", help="Type of the matrices.")
    ] = "bf16",
) -> None:
    """Write a canary as GGUF, the file that llama.cpp's server reads."""
    require(("gguf", "safetensors"))
    if kind not in ("bf16", "f16", "f32"):
        raise InputError(f"--type {kind}: choose bf16, f16 or f32")
    if out.exists():
        raise InputError(f"--out {out}: is there already; name a new file")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: {out.parent} is no folder; make it first")
    request = WrittenGguf(checkpoint=str(checkpoint), out=str(out), kind=kind)
    result = ask("canaries.gguf_file", request, name="the writer", environ=on_path(ROOT))
    note = "" if result["splits_text"] else "; llama.cpp cannot split text for it: send token ids"
    print(f"written: {out}{note}")
