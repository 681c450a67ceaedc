"""What an accuracy run leaves behind: plain, frozen, without torch; the same in memory, on disk and in a report."""

from __future__ import annotations

from pydantic import Field

from harness.records import Record, Verdict

ANSWER_CHARS = 200

Interval = tuple[float, float]


class RunHeader(Record):
    """The first line of `accuracy.jsonl`: what was asked of whom. A run is resumed only under the same header."""

    schema_version: int = 1
    task: str
    filter: str
    model: str
    model_hash: str
    engine: str
    dtype: str
    seed: int
    num_epochs: int
    questions: tuple[str, ...]
    """Hashes in the task's own order."""
    deterministic: bool = False
    note: str = ""


class QuestionResult(Record):
    """What became of one question in one epoch. A run holds exactly one for each of both."""

    epoch: int
    question: str
    position: int = Field(description="place of the question in the epoch's order")
    correct: bool
    scores: dict[str, float] = Field(default={}, description="lm-eval's metric under each of the task's filters")
    answer: str = Field(default="", description=f"the first {ANSWER_CHARS} characters")
    answer_hash: str = ""
    num_tokens: int = 0
    finish: str = ""
    num_attempts: int = 1
    unanswered: str | None = None
    empty: bool = False
    unparsed: bool = False
    invalid_tokens: bool = False


class Flips(Record):
    """How one epoch's answers differ from those of its reference, question by question."""

    reference: str
    num_shared: int
    lost: int
    gained: int
    p_value: float = Field(description="exact McNemar, two-sided")


class EpochAccuracy(Record):
    """One epoch, counted over all its questions: an unanswered one is never left out."""

    epoch: int
    num_questions: int
    num_correct: int
    accuracy: float
    interval: Interval = Field(description="Wilson, 95 %")
    unanswered: int = 0
    empty: int = 0
    unparsed: int = 0
    invalid_tokens: int = 0
    retried: int = 0
    num_tokens: int = 0
    unanswered_reasons: dict[str, int] = Field(default={}, description="reason -> how many questions")
    flips: Flips | None = Field(default=None, description="against the baseline, or else the first epoch")
    changed: int = Field(default=0, description="answers whose text differs from the first epoch's")


class BaselineUse(Record):
    """The baseline that a run was compared to."""

    name: str
    accuracy: float
    interval: Interval
    num_shared: int


class Limits(Record):
    """What fails a run by itself, whatever its accuracy. Shares of all questions; None allows any number."""

    unanswered: float | None = 0.01
    empty: float | None = 0.01
    unparsed: float | None = Field(default=0.5, description="of what cannot be read, nothing is measured")
    invalid_tokens: float | None = 0.0
    accuracy: float | None = Field(default=None, description="the least accuracy of an epoch; None asks for none")
    flips: int | None = Field(default=None, description="between epochs; None means 0 on a deterministic engine")
    alpha: float = Field(default=0.05, gt=0, lt=1, description="chance of a false alarm, over all tests of the run")


class Judgement(Record):
    """The verdict of a run with its reasons."""

    verdict: Verdict
    statement: str = Field(description="one sentence for people")
    reasons: tuple[str, ...] = ()
    p_value: float | None = Field(default=None, description="the smallest of the run's tests, Bonferroni-adjusted")
    trend_p_value: float | None = Field(default=None, description="Wilcoxon signed-rank on each question's slope")
    num_tests: int = 0
    smallest_drop: float | None = Field(default=None, description="the drop seen with 80 % power; None: no drop can be")
    num_flips: int = Field(default=0, description="questions that changed between right and wrong from the first epoch")


class OutcomeGrid(Record):
    """The per-question grid: one string an epoch, one character a question in the task's order.

    `1` right, `0` wrong, `u` unanswered, `e` empty, `p` did not parse, `i` invalid tokens, `.` not asked yet.
    """

    questions: tuple[str, ...]
    rows: tuple[str, ...]
    baseline: str = Field(default="", description="the same for the baseline; empty without one")


class AccuracyRecord(Record):
    """One entry of `accuracy` in summary.json."""

    schema_version: int = 1
    scenario: str = ""
    case: str = ""
    fault: str | None = None
    task: str
    model: str
    model_hash: str
    engine: str
    dtype: str
    seed: int
    note: str = ""
    filter: str = ""
    epochs: tuple[EpochAccuracy, ...]
    ci: tuple[Interval, ...] = Field(description="the intervals of the epochs, in their order")
    baseline: BaselineUse | None = None
    verdict: Verdict
    judgement: Judgement
    grid: OutcomeGrid
    seconds: float = 0.0
