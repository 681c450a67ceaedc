"""Tasks of lm-eval, found offline: the project's own, and lm-eval's stock ones from the hub or from local JSON lines.

A task is always lm-eval's YAML. Local data is put under it by a YAML of three lines, written for the run, which
includes the original and names the files. Prompts, filters and metrics are lm-eval's own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import InputError
from harness.core.fixtures import TASKS
from harness.core.registry import nearest

INVALID = "[invalid]"
"""What lm-eval's regular-expression filters give for an answer that does not parse."""

STOCK = {
    "gsm8k": ("gsm8k/gsm8k.yaml", {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"}),
    "aime24": ("aime/aime24.yaml", {"train": "aime24/train.jsonl"}),
    "aime25": ("aime/aime25.yaml", {"test": "aime25/test.jsonl"}),
}
"""lm-eval's own tasks: their YAML in the package, and the files expected under `--data-dir` for each split."""


@dataclass(frozen=True)
class Grade:
    """lm-eval's judgement of one answer, and whether a filter found anything to judge."""

    correct: bool
    scores: dict[str, float]
    unparsed: bool


class Task:
    """One loaded lm-eval task: its questions by hash, its prompts, and the grading of single answers."""

    def __init__(self, name: str, task: Any, *, filter_name: str | None = None, limit: int | None = None) -> None:
        self.name = name
        self.lm_eval_task = task
        # lm-eval keeps them under this name alone; its evaluate() reaches them through apply_filters().
        self._filters = task._filters
        filters = [ensemble.name for ensemble in self._filters]
        if filter_name is not None and filter_name not in filters:
            raise InputError(f"--filter {filter_name!r}: task {name} has {', '.join(filters)}")
        self.filter = filter_name or filters[0]
        self.metric = "exact_match"
        # Prompts are made once. Few-shot examples are drawn from a generator that moves on with each prompt: made
        # again for another epoch, or for the rest of an epoch after a kill, they would not be the same prompts.
        _keep_compiled_templates()
        with _no_progress_bars():
            task.build_all_requests(limit=limit)
        self.instances = list(task.instances)
        self.questions = question_hashes([instance.doc for instance in self.instances])
        task.build_all_requests = self._select

    def grade(self, instance: Any, text: str) -> Grade:
        """Judge one answer with the calls that `lm_eval.evaluate` makes, so that it can be stored at once."""
        alone = replace(instance, resps=[text], filtered_resps={})
        for ensemble in self._filters:
            ensemble.apply([alone])
        scores = {
            name: float(self.lm_eval_task.process_results(alone.doc, [filtered])[self.metric])
            for name, filtered in alone.filtered_resps.items()
        }
        return Grade(scores[self.filter] == 1.0, scores, alone.filtered_resps[self.filter] == INVALID)

    def _select(self, *, samples: list[int] | None = None, **_: Any) -> None:
        """Stands in for the task's own `build_all_requests`: the prompts made before, numbered as lm-eval expects."""
        chosen = range(len(self.instances)) if samples is None else samples
        self.lm_eval_task._instances = [
            replace(self.instances[i], resps=[], filtered_resps={}, metadata=(self.name, number, 1))
            for number, i in enumerate(chosen)
        ]


def question_hashes(docs: list[dict[str, Any]]) -> tuple[str, ...]:
    """A hash of each question, its answer included; a question asked twice gets a number behind its hash."""
    seen: Counter[str] = Counter()
    hashes = []
    for doc in docs:
        text = json.dumps(doc, sort_keys=True, ensure_ascii=False, default=str)
        short = hashlib.sha256(text.encode()).hexdigest()[:12]
        seen[short] += 1
        hashes.append(short if seen[short] == 1 else f"{short}-{seen[short]}")
    return tuple(hashes)


def known_tasks() -> list[str]:
    """Names that `--task` takes."""
    return sorted([path.stem for path in TASKS.glob("*.yaml")] + list(STOCK))


def load_task(
    name: str,
    work_dir: Path,
    *,
    data_dir: Path | None = None,
    filter_name: str | None = None,
    limit: int | None = None,
) -> Task:
    """Load the first `limit` questions of a task; `work_dir` takes the written YAML and the datasets cache.

    Without `data_dir` a stock task comes from the hub; everything else touches no network. Raises InputError for an
    unknown task, a missing file, and data that lm-eval cannot use.
    """
    work_dir = work_dir.resolve()
    path, data_files = _source(name, data_dir)
    if data_files:
        _forbid_network()
    spec = path
    if data_files:
        spec = work_dir / f"{name}.yaml"
        spec.parent.mkdir(parents=True, exist_ok=True)
        spec.write_text(_with_files(name, path, data_files, work_dir / "datasets"), encoding="utf-8")
    _require_lm_eval()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

    manager = TaskManager(include_path=str(spec.parent), include_defaults=False)
    try:
        with _no_progress_bars():
            task = manager.load([str(spec)])["tasks"][name]
    except Exception as error:  # datasets, its readers and the hub raise whatever they like
        where = ", ".join(data_files.values()) if data_files else "the hub"
        raise InputError(f"--task {name}: lm-eval cannot load it from {where}: {_first_line(error)}") from None
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=1234)
    return Task(name, task, filter_name=filter_name, limit=limit)


def _source(name: str, data_dir: Path | None) -> tuple[Path, dict[str, str]]:
    """The task's YAML, and the local file of each split (none: from the hub)."""
    own = TASKS / f"{name}.yaml"
    if name not in STOCK and not own.is_file():
        raise InputError(f"--task {name!r}: unknown; {nearest(name, known_tasks(), see='')}")
    if own.is_file() and name not in STOCK:
        folder = data_dir or TASKS / "data"
        return own, _existing(name, {"test": f"{name}.jsonl"}, folder)
    _require_lm_eval()
    found = importlib.util.find_spec("lm_eval.tasks")
    assert found is not None and found.origin is not None
    path, files = STOCK[name]
    stock = Path(found.origin).parent / path
    return stock, _existing(name, files, data_dir) if data_dir else {}


def _existing(name: str, files: dict[str, str], folder: Path) -> dict[str, str]:
    for file in files.values():
        if not (folder / file).is_file():
            raise InputError(f"--data-dir {folder}: task {name} needs {folder / file}, which is not there")
        _check_lines(folder / file)
    return {split: str((folder / file).resolve()) for split, file in files.items()}


def _check_lines(path: Path) -> None:
    """One bad line makes `datasets` give up without saying which."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                is_question = isinstance(json.loads(line), dict)
            except ValueError:
                is_question = False
            if not is_question:
                raise InputError(f"{path}:{number}: not a JSON object; each line must be one question")


def _with_files(name: str, original: Path, files: dict[str, str], cache: Path) -> str:
    override: dict[str, Any] = {
        "include": str(original),
        "task": name,
        "tag": [],
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, "cache_dir": str(cache)},
    }
    return yaml.safe_dump(override, sort_keys=False)


def _forbid_network() -> None:
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ[variable] = "1"
    # Both packages read their variable once, when they are imported.
    for module in ("datasets.config", "huggingface_hub.constants"):
        if module in sys.modules:
            sys.modules[module].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """lm-eval and datasets draw bars of their own; tqdm takes standard error as it finds it."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _keep_compiled_templates() -> None:
    """lm-eval compiles a task's templates anew for each use, three times an answer: a third of a fast engine's time."""
    from lm_eval.utils import env  # type: ignore[import-untyped]

    if not hasattr(env.from_string, "cache_info"):
        env.from_string = functools.lru_cache(maxsize=256)(env.from_string)


def _require_lm_eval() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise InputError("accuracy needs lm-eval, which is not installed: python3 -m pip install lm-eval==0.4.13")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]
