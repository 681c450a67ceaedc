"""Causes as codes. The program compares these codes and never reads a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """What went wrong, or why a case was not run.

    Set where it arises. An oracle of an engine may use codes of its own.

    Findings with one oracle, tensor and cause are one failure, whatever their numbers.
    """

    # Values.
    NAN = "nan"
    INF = "inf"
    SENTINEL = "sentinel"
    POISON_INDEX = "poison_index"
    """An integer as the poison writes it, where the poison of zeros left another."""
    WRITTEN = "written"
    """Memory that must not change was written."""
    DIFFERS = "differs"
    """Another value than the reference's, or than an equal run's."""
    ONE_VALUE = "one_value"
    """A row has equal elements, so it can show no influence."""
    UNMOVED = "unmoved"
    """A replay gives the same bits although its inputs change."""
    DIVERGED = "diverged"
    """Another decision, which rounding does not explain."""
    OTHER_COURSE = "other_course"
    """Two runs have other tensors."""
    WRONG_TOKEN = "wrong_token"
    OUTSIDE_SCHEMA = "outside_schema"
    PROMPT_IN_TEXT = "prompt_in_text"
    """The text of an answer begins with other text, though its tokens obey."""

    # Contracts.
    OTHER_ADDRESS = "other_address"
    DIRTY = "dirty"
    MISCOUNTED = "miscounted"
    REPEATED_EXPERT = "repeated_expert"
    UNKNOWN_EXPERT = "unknown_expert"
    MISPLACED = "misplaced"
    UNORDERED = "unordered"

    # What a corrupted call came to.
    CORRECT = "correct"
    CLEAN_ERROR = "clean_error"
    UNCLEAR_ERROR = "unclear_error"
    """An error that does not name the corrupted argument."""
    SILENT_GARBAGE = "silent_garbage"
    FAULT = "fault"
    """The device failed."""

    # Accuracy.
    DROP = "drop"
    TREND = "trend"
    LIMIT = "limit"
    FLIPS = "flips"
    INCOMPLETE = "incomplete"
    UNANSWERED = "unanswered"

    # Crashes.
    ILLEGAL_ADDRESS = "illegal_address"
    RAISED = "raised"
    UNDECLARED_SHAPES = "undeclared_shapes"
    """The kernel raises at these sizes and runs at DeepSeek's; it declares no shapes."""
    BAD_OUTPUT = "bad_output"
    CAPTURE = "capture"
    REPLACED = "replaced"
    """A plug-in left functions or modes of torch, or code of the harness, changed."""
    CHEATS = "cheats"
    """A kernel under judgement deals with the judge in place of its inputs."""
    RESTORED = "restored"
    """It passes, and a plug-in left a setting changed, which was restored."""
    KEPT = "kept"
    """It passes, and a kernel under judgement returned memory that it had returned before."""
    DEVICE = "device"
    DIED = "died"
    TIME_LIMIT = "time_limit"
    LOST_NODES = "lost_nodes"
    SANITIZER = "sanitizer"

    # Cases that prove nothing.
    UNABLE = "unable"
    """It cannot run here, for a reason without a code of its own."""
    NO_DEVICE = "no_device"
    """The machine lacks the device, or its GPU is of another kind."""
    NOT_INSTALLED = "not_installed"
    NO_MEMORY = "no_memory"
    """The harness's own memory for it does not fit."""
    UNSUPPORTED = "unsupported"
    """A kernel has no such size, cache type, argument or graph."""
    AS_RELEASED = "as_released"
    """The release has the bug that would be injected."""
    NO_PATCH = "no_patch"
    """No patch injects the bug into this release."""
    BROKEN_PLUGIN = "broken_plugin"
    """A plug-in does not import, or its kernel imports what is not there. The run ends."""
    BROKEN_TABLES = "broken_tables"
    """The tables of its engine do not load."""
    REFUSED = "refused"
    """An engine refuses the options."""
    KERNEL_REFUSED = "kernel_refused"
    """The kernel itself refuses the call, by raising `Refused`."""
    NEVER_CALLED = "never_called"
    NEVER_HAPPENED = "never_happened"
    NOT_REACHED = "not_reached"
    """No run came to the code of the injected fault."""
    LEFT_OUT = "left_out"
    """It would have repeated a crash of a user's kernel."""
    BLIND = "blind"
    """An oracle judged no element."""
    POWERLESS = "powerless"
    """A measurement of accuracy would have seen nothing short of the loss of every right answer."""
    HARNESS = "harness"
    """An error of the harness itself."""
    KNOWN = "known"
    KNOWN_GONE = "known_gone"
    """A known failure passes."""

    # How the memory to blame was found.
    ALONE = "alone"
    """Each site to blame makes the case fail alone."""
    ONLY_SITE = "only_site"
    """No other site was poisoned."""
    NECESSARY = "necessary"
    """The case passes without any one of the sites to blame."""
    TOGETHER = "together"
    """Some of the sites are enough, and no one of them is needed."""
    WITHOUT_POISON = "without_poison"
    """The case fails without poison; its findings may name memory."""
    NOT_REPEATED = "not_repeated"
    """The same inputs give different results."""
    NOT_FILLED = "not_filled"
    """The case fills no memory, so trials can name none."""
    NOT_SOUGHT = "not_sought"
    """No trial was made: each would start a server."""
    OUT_OF_TIME = "out_of_time"
    """The trials did not end within the time for them."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why something cannot run here: a `sentence` for people, and a `cause` for the program.

    Each function that answers this question returns a WhyNot, or None where nothing is in the way:
    the `why_not` of targets, kernels, patches and packages, and `requires` of a kernel. A case with
    a WhyNot is skipped, with its sentence and its cause. A caller adds what it knows by making
    another one of the same cause.
    """

    sentence: str
    cause: Code = Code.UNABLE
    lacks: str = ""
    """The one thing that would help, such as `vLLM` or `a CUDA GPU`; empty if no thing would."""
    command: str = ""
    """What brings it; empty where no command does."""

    @classmethod
    def no_gpu(cls, sentence: str = "no CUDA device on this machine") -> WhyNot:
        """A reason that a CUDA GPU would remove."""
        return cls(sentence, Code.NO_DEVICE, lacks="a CUDA GPU")

    def __post_init__(self) -> None:
        if not self.sentence:
            raise ValueError("a WhyNot needs a sentence; return None where nothing is in the way")

    def __str__(self) -> str:
        return self.sentence
