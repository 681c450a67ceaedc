"""The commands that `disturbed.py` disturbs, and what they read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trust.disturbances.aftermath import ROOT, call

SURVEY = "merge-kernel"
"""The scenario that stands for an engine's survey: its options are points of a kernel."""
TWO = ("-n", "2")
LOUD = """
import torch
from harness import kernel

@kernel(op="quantize_fp8", name="loud")
def loud(x, *, num_live=None):
    print("." * 5000, flush=True)
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
"""
"""A kernel that prints, as its worker's log is a temporary file."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line.

    URL, OUT, FILE and PREPARED in its words stand for a server, folders and a file to write.
    """

    words: tuple[str, ...]
    worker: str = "fork"
    """The processes that work for it: `fork`, `trial` of a mutant, one `child`, or none."""
    resume: str = "run"
    """The command that goes on with its run; empty if none does."""
    more: tuple[str, ...] = TWO
    codes: tuple[int, ...] = (0,)
    """Its exit codes if nothing disturbs it."""
    codes_of_a_killed_worker: tuple[int, ...] = (1,)
    writes: bool = True
    needs_out: bool = True

    def in_words(self, url: str, out: Path, prepared: Path) -> list[str]:
        """The words for one trial."""
        known = {
            "URL": url,
            "OUT": str(out),
            "FILE": str(out / "shown.py"),
            "PREPARED": str(prepared),
        }
        words = list(self.words)
        for name, value in known.items():
            words = [word.replace(name, value) for word in words]
        return words + (["--out", str(out)] if self.needs_out else [])


def _reads(*words: str) -> Command:
    """A command that reads a stored run and writes nothing."""
    return Command(words, worker="", resume="", writes=False, needs_out=False)


COMMANDS: dict[str, Command] = {
    "run": Command(("run", "write-kv-kernel", "merge-kernel", *TWO)),
    "run of a kernel that prints": Command(
        ("run", "quantize-kernel", "quantize-zeros", "--plugin", "PREPARED/loud.py", *TWO),
        codes=(0, 1),
    ),
    "run of memory moves": Command(("run", "memory-moves-host", "memory-moves-handoff", *TWO)),
    "selftest": Command(("selftest", "write-kv-kernel", "quantize-zeros", *TWO), resume="selftest"),
    "selftest --controls": Command(("selftest", "--controls", "40", *TWO), resume="selftest"),
    "mutants --changes": Command(
        ("mutants", "merge-kernel", "--changes", "60", *TWO),
        worker="trial",
        resume="mutants",
        codes_of_a_killed_worker=(0,),
    ),
    "mutants --conditions": Command(
        ("mutants", "merge-kernel", "--conditions", "20", *TWO),
        worker="trial",
        resume="mutants",
        codes_of_a_killed_worker=(0,),
    ),
    "survey vllm": Command(
        ("survey", "vllm", "--seconds", "5", "--scenarios", "PREPARED/vllm", *TWO), resume="survey"
    ),
    "survey sglang": Command(
        ("survey", "sglang", "--seconds", "5", "--scenarios", "PREPARED/sglang", *TWO),
        resume="survey",
    ),
    "serve-check": Command(
        ("serve-check", "URL", "--script", "cache-reuse"),
        worker="child",
        resume="",
        codes_of_a_killed_worker=(3,),
    ),
    "serve-check --fuzz": Command(
        ("serve-check", "URL", "--fuzz", "30", "--seed", "1"),
        worker="child",
        resume="",
        codes_of_a_killed_worker=(3,),
    ),
    "epochs": Command(
        (
            "epochs",
            "--task",
            "gsm_symbolic",
            "--model",
            "server:URL",
            "--epochs",
            "6",
            "--limit",
            "8",
        ),
        worker="child",
        resume="epochs",
        more=(),
        codes=(0, 1),
    ),
    "merge": Command(("merge", "PREPARED/shards/1", "PREPARED/shards/2"), worker="", resume=""),
    "report": _reads("report", "PREPARED/shards/1"),
    "coverage": _reads("coverage", "PREPARED/shards/1"),
    "repro --script": Command(
        ("repro", "36540", "--script", "FILE", "--shrink-seconds", "3", *TWO),
        resume="",
        needs_out=False,
    ),
    "shrink": Command(
        ("shrink", SURVEY, "--fault", "merge.ignore-context-count", *TWO),
        resume="",
        writes=False,
        needs_out=False,
    ),
}
for title, scenario in (("SGLang", "sglang-host-free-pages"), ("vLLM", "vllm-host-kv-groups")):
    if folder := os.environ.get(title.upper()):
        COMMANDS[f"run of {title} on a CPU"] = Command(
            ("run", scenario, "--engine-path", folder, *TWO)
        )


def prepare(folder: Path, commands: Sequence[str]) -> None:
    """Write the scenarios of surveys, and run the shards that other commands read."""
    (survey,) = (ROOT / "scenarios").rglob(f"{SURVEY}.yaml")
    text = survey.read_text().partition("\nfaults:")[0]
    text = text.replace("tags: [prefill]", "tags: [nightly]")
    (folder / "loud.py").write_text(LOUD)
    for engine in ("vllm", "sglang"):
        (folder / engine).mkdir()
        own = text.replace(f"name: {SURVEY}", f"name: {engine}-survey")
        (folder / engine / f"{engine}-survey.yaml").write_text(own)
    if not {"merge", "report", "coverage"} & set(commands):
        return
    (folder / "shards").mkdir()
    for number in ("1", "2"):
        out = folder / f"shard{number}"
        done = call(
            "run",
            SURVEY,
            "merge-conditions",
            "--shard",
            f"{number}/2",
            *TWO,
            "--out",
            str(out),
            folder=folder,
        )
        assert done.returncode == 0, done.stderr
        (folder / "shards" / number).symlink_to(next(out.iterdir()))
