"""Tasks of lm-eval, found offline: the project's own, and lm-eval's stock ones from the hub or from
local JSON lines.

A task is always lm-eval's YAML. For local data, a short YAML is written for the run: it includes
the original and names the files. Prompts, filters and metrics are lm-eval's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness.accuracy.answer_log import ANSWER_CHARS, QUESTION_CHARS, AskedQuestion
from harness.core import extras
from harness.core.errors import InputError
from harness.core.files import TASKS
from harness.core.registry import nearest

if TYPE_CHECKING:
    from harness.accuracy.lm import KeptPrompts

INVALID = "[invalid]"
"""The result of lm-eval's regular-expression filters for an answer that does not parse."""

STOCK = {
    "gsm8k": ("gsm8k/gsm8k.yaml", {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"}),
    "aime24": ("aime/aime24.yaml", {"train": "aime24/train.jsonl"}),
    "aime25": ("aime/aime25.yaml", {"test": "aime25/test.jsonl"}),
}
"""lm-eval's own tasks: the YAML in the package, and the file of each split under `--data-dir`."""
LEAST_OF_CANARY = 0.97
"""The least accuracy of a canary on questions that it knows: an answer it loses is corrupted."""


@dataclass(frozen=True)
class Grade:
    """lm-eval's judgement of one answer, and whether a filter found anything to judge."""

    correct: bool
    scores: dict[str, float]
    unparsed: bool


class Task:
    """One loaded lm-eval task: its questions by hash, its prompts, and the grading of single
    answers.
    """

    def __init__(self, name: str, task: KeptPrompts, *, filter_name: str | None = None) -> None:
        self.name = name
        self.lm_eval_task = task
        filters = task.filter_names
        if filter_name is not None and filter_name not in filters:
            raise InputError(f"--filter {filter_name!r}: task {name} has {', '.join(filters)}")
        self.filter = filter_name or filters[0]
        self.metric = "exact_match"
        self.instances = task.kept
        self.questions = question_hashes([instance.doc for instance in self.instances])

    def asked(self) -> dict[str, AskedQuestion]:
        """Hash -> the question in words and its right answer, without the examples before it."""
        found = {}
        for name, instance in zip(self.questions, self.instances, strict=True):
            text = str(self.lm_eval_task.doc_to_text(instance.doc))
            target = str(self.lm_eval_task.doc_to_target(instance.doc))
            found[name] = AskedQuestion(
                text=text[:QUESTION_CHARS], target=target[-ANSWER_CHARS:].strip()
            )
        return found

    def grade(self, instance: Any, text: str) -> Grade:
        filtered = self.lm_eval_task.filtered(instance, text)
        judge = self.lm_eval_task.process_results
        scores = {
            name: float(judge(instance.doc, [answer])[self.metric])
            for name, answer in filtered.items()
        }
        return Grade(scores[self.filter] == 1.0, scores, filtered[self.filter] == INVALID)


def question_hashes(docs: list[dict[str, Any]]) -> tuple[str, ...]:
    """A hash of each question with its answer. A repeated question gets a number after its hash."""
    seen: Counter[str] = Counter()
    hashes = []
    for doc in docs:
        text = json.dumps(doc, sort_keys=True, ensure_ascii=False, default=str)
        short = hashlib.sha256(text.encode()).hexdigest()[:12]
        seen[short] += 1
        hashes.append(short if seen[short] == 1 else f"{short}-{seen[short]}")
    return tuple(hashes)


def known_tasks() -> list[str]:
    return sorted([path.stem for path in TASKS.glob("*.yaml")] + list(STOCK))


def least_of_canary(task: str, model: str, num_questions: int) -> float | None:
    """The least accuracy of `model` on the first questions of a shipped task; None if it is no
    canary that knows them all.

    The task's file says under `known_by` how many each canary knows.
    """
    if task in STOCK:
        return None
    metadata = yaml.safe_load((TASKS / f"{task}.yaml").read_text("utf-8")).get("metadata", {})
    num_known = metadata.get("known_by", {}).get(re.split("[:/]", model)[-1], 0)
    return LEAST_OF_CANARY if num_questions <= num_known else None


def load_task(
    name: str,
    work_dir: Path,
    *,
    data_dir: Path | None = None,
    filter_name: str | None = None,
    limit: int | None = None,
) -> Task:
    """Load the first `limit` questions of a task.

    `work_dir` gets the written YAML and the datasets cache.

    A stock task without `data_dir` comes from the hub; all others need no network. Raises
    InputError for an unknown task, a missing file, and data that lm-eval cannot use.
    """
    work_dir = work_dir.resolve()
    path, data_files = _source(name, data_dir)
    spec = path
    if data_files:
        _forbid_network()
        spec = work_dir / f"{name}.yaml"
        spec.parent.mkdir(parents=True, exist_ok=True)
        files = {"data_files": data_files, "cache_dir": str(work_dir / "datasets")}
        dataset = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": files}
        override: dict[str, object] = {"include": str(path), "task": name, "tag": [], **dataset}
        spec.write_text(yaml.safe_dump(override, sort_keys=False), encoding="utf-8")
    extras.require(extras.ACCURACY)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

    from harness.accuracy.lm import KeptPrompts

    # lm-eval has thousands of tasks of its own, whose files it would read first.
    manager = TaskManager(include_path=str(spec.parent), include_defaults=False)
    try:
        with _no_progress_bars():
            task = manager.load([str(spec)])["tasks"][name]
    except Exception as error:  # datasets, its readers and the hub raise many types
        where = ", ".join(data_files.values()) if data_files else "the hub"
        reason = (str(error.__cause__ or error) or type(error).__name__).splitlines()[0][:160]
        raise InputError(f"--task {name}: lm-eval cannot load it from {where}: {reason}") from None
    # As `simple_evaluate` of lm-eval sets a task up. `evaluate` takes it as it is.
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=1234)
    with _no_progress_bars():
        return Task(name, KeptPrompts.of(task, limit), filter_name=filter_name)


def _source(name: str, data_dir: Path | None) -> tuple[Path, dict[str, str]]:
    """The task's YAML, and the local file of each split; no files for a task from the hub."""
    if name not in STOCK:
        own = TASKS / f"{name}.yaml"
        if not own.is_file():
            raise InputError(f"--task {name!r}: unknown; {nearest(name, known_tasks(), see='')}")
        return own, _existing(name, {"test": f"{name}.jsonl"}, data_dir or TASKS / "data")
    extras.require(extras.ACCURACY)
    found = importlib.util.find_spec("lm_eval.tasks")
    assert found is not None and found.origin is not None
    path, files = STOCK[name]
    stock = Path(found.origin).parent / path
    return stock, _existing(name, files, data_dir) if data_dir else {}


def _existing(name: str, files: dict[str, str], folder: Path) -> dict[str, str]:
    for file in files.values():
        # `Path.is_file` raises for a name that is too long.
        if not os.path.isfile(folder / file):
            raise InputError(
                f"--data-dir {folder}: task {name} needs {folder / file}, which is not there"
            )
        _check_lines(folder / file)
    return {split: str((folder / file).resolve()) for split, file in files.items()}


def _check_lines(path: Path) -> None:
    """Raises InputError with the number of a bad line, which `datasets` does not report."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            with contextlib.suppress(ValueError):
                if isinstance(json.loads(line), dict):
                    continue
            raise InputError(f"{path}:{number}: not a JSON object; each line must be one question")


def _forbid_network() -> None:
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ[variable] = "1"
    # Both packages read their variable only when they are imported.
    for module in ("datasets.config", "huggingface_hub.constants"):
        if module in sys.modules:
            sys.modules[module].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def _no_progress_bars() -> contextlib.redirect_stderr[io.StringIO]:
    """Hides the progress bars of lm-eval and datasets on standard error."""
    return contextlib.redirect_stderr(io.StringIO())
