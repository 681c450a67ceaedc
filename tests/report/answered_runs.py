"""Stored accuracy runs, made of the words of their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from harness.accuracy.answer_log import (
    FILE_NAME,
    AnswerLog,
    AskedQuestion,
    QuestionResult,
    RunHeader,
    keep_questions,
)
from harness.core.model_params import ModelParams
from harness.store import epochs as store_epochs
from harness.store.run_folder import RunStore

HOSTILE = '</script><svg onload="alert(1)">'


def answered(
    root: Path,
    texts: Sequence[Sequence[str]],
    *,
    right: str = "yes",
    least: float | None = None,
    logprobs: Sequence[float | None] = (),
    order: Sequence[int] | None = None,
) -> RunStore:
    """A stored run with one row of answers an epoch; an answer is right if it is `right`."""
    names = tuple(f"{number:012x}" for number in range(len(texts[0])))
    header = RunHeader(
        task="gsm8k",
        filter="strict-match",
        model="server:toy",
        model_hash="served:toy",
        engine="server",
        dtype="as served",
        seed=0,
        num_epochs=len(texts),
        questions=names,
    )
    asked = ModelParams(
        task="gsm8k", model="server:http://localhost:8000/v1", epochs=len(texts), least=least
    )
    store = store_epochs.create(root, header, asked, None, "mla-harness epochs")
    log = AnswerLog(store.path / FILE_NAME, header)
    keep_questions(
        store.path,
        {name: AskedQuestion(text=f"{HOSTILE} {n}?", target="yes") for n, name in enumerate(names)},
    )
    for epoch, row in enumerate(texts, start=1):
        for place, (name, text) in enumerate(zip(names, row, strict=True)):
            words = tuple(text.split())
            log.add(
                QuestionResult(
                    epoch=epoch,
                    question=name,
                    position=order[place] if order else place,
                    correct=text == right,
                    answer=text,
                    answer_hash=hashlib.sha256(text.encode()).hexdigest()[:12],
                    num_tokens=len(words),
                    finish="stop",
                    tokens=words if logprobs else (),
                    logprobs=tuple(logprobs[: len(words)]),
                )
            )
    store.add(store_epochs.judged(store))
    return store
