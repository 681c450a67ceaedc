"""Approved transcripts: what the program says to people, kept in files that a reviewer reads.

A test that asks for the fixture `approved` collects what the program said. At the end of the test
this is compared with the test's section of `approved/<topic>.txt`, beside the test's file
`test_<topic>.py`. A new sentence is approved by `pytest FILE --approve`, which rewrites the
section; the difference is then read in the commit, as code is.

    def test_a_folder_without_scenarios_is_refused(tmp_path, approved):
        with approved.raises(InputError):
            load_scenarios(tmp_path)

What changes from run to run is replaced by a word in capitals: see :func:`normal`.
"""

from __future__ import annotations

import difflib
import fcntl
import html
import re
import tempfile
from collections.abc import Generator, Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).parents[1]
INDENT = "    "
CHANGING = (
    (r"0x[0-9a-f]{9,}", "ADDRESS"),
    (r"\b(Triton|torch|Python) \d[\w.+]*", r"\1 VERSION"),
    (r" \[type=\w+, input_value=.*, input_type=\w+\]", ""),
    (r"(?<=127\.0\.0\.1:)\d{4,5}", "PORT"),
    (r"\bprocess \d+\b", "process PID"),
    (r"\d{8}T\d{6}Z-[0-9a-f]{4}", "RUN"),
    (r"mla-harness-[a-z0-9_]{8}(?=\.)", "mla-harness-RANDOM"),
    (r"(?<!within )(?<!for )(?<![\w.])\d+(\.\d+)? s\b", "SECONDS s"),
    (r"\b[\d,]+ a second\b", "MANY a second"),
    (r"\b\d\d\d\d-\d\d-\d\d \d\d:\d\d\b", "DATE"),
    (r"(nan|inf|-?\d)\S* where -?\d\S* is expected", "NUMBER where NUMBER is expected"),
    (r"\d+ of \d+ live rows and \d+ of \d+ elements", "SOME live rows and SOME elements"),
    (r"worst \S+ times it", "worst NUMBER times it"),
    (r"off by \S+ of its size", "off by NUMBER of its size"),
    (r"\d\S* below it, \d\S* is within", "NUMBER below it, NUMBER is within"),
    (r"\b\d{3,}(?= known\b)", "MANY"),
    (r"(?<=for all )\d{3,}", "MANY"),
)
"""Patterns of what differs from run to run or from machine to machine, or with each new scenario,
and the word that stands for it.
"""
ErrorT = TypeVar("ErrorT", bound=BaseException)
BLOCKS = "h[1-6]|p|li|dt|dd|div|section|article|summary|t[dhr]|button|title|pre"
"""The elements of HTML that stand on a line of their own."""
MAX_CHARACTERS = 10_000
"""The most that one test may have approved: what is longer is approved unread."""
AT_THE_END = pytest.StashKey["Approved"]()


def normal(text: str, temporary: Path) -> str:
    """A text without what depends on the run or the machine: folders, addresses, ports, run
    folders, times.

    `temporary` is the folder in which pytest makes the `tmp_path` of each test.
    """
    text = re.sub(rf"{re.escape(str(temporary))}/[\w-]+", "TMP", text)
    text = text.replace(str(ROOT), "CHECKOUT")
    for behind in (":", "/mla-harness-"):
        text = text.replace(f"{tempfile.gettempdir()}{behind}", f"TMPDIR{behind}")
    for pattern, word in CHANGING:
        text = re.sub(pattern, word, text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def lines_with(text: str, *words: str) -> str:
    """The lines of a long output that a test is about: those with one of the words.

    A word that no line has is an error, so that no line is lost unseen.
    """
    for word in words:
        assert word in text, f"no line has {word!r}:\n{text}"
    return "\n".join(line for line in text.splitlines() if any(word in line for word in words))


def page_text(page: str) -> str:
    """What a reader sees of a page of HTML: a block of the page is a line."""
    page = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(rf"</?({BLOCKS})\b[^>]*>", "\n", page)
    lines = (
        " ".join(line.split()) for line in html.unescape(re.sub(r"<[^>]+>", " ", page)).splitlines()
    )
    return "\n".join(line for line in lines if line)


def sections(path: Path) -> dict[str, str]:
    """What a file of transcripts holds: the text of each test, by the test's name.

    Names that follow one another share the text below them.
    """
    found: dict[str, list[str]] = {}
    names: list[str] = []
    above = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line and not line.startswith(INDENT):
            starts_anew = not above or above.startswith(INDENT)
            names = [line] if starts_anew else [*names, line]
            found[line] = []
        else:
            for name in names:
                found[name].append(line.removeprefix(INDENT))
        above = line
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def written(by_test: dict[str, str]) -> str:
    """The text of a file of transcripts. A test's lines are indented, so none can be a heading.

    Parameters of one test that say the same stand above one text.
    """
    groups: list[tuple[list[str], str]] = []
    for name, text in sorted(by_test.items()):
        test = name.partition("[")[0]
        if groups and groups[-1][1] == text and groups[-1][0][0].partition("[")[0] == test:
            groups[-1][0].append(name)
        else:
            groups.append(([name], text))
    shown = []
    for names, text in groups:
        lines = [f"{INDENT}{line}".rstrip() for line in text.splitlines()]
        shown.append("\n".join([*names, *lines]) + "\n")
    return "\n".join(shown)


def replace_section(path: Path, name: str, text: str) -> None:
    """Write one test's section. A lock keeps the sections of tests that run at the same time.

    Sections of parameters that the test no longer has go, if it has none at all any more.
    """
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = sections(path)
        by_test = {one: before[one] for one in before if not one.startswith(f"{name}[")}
        by_test[name] = text
        file.truncate(0)
        file.write(written(by_test))


class Approved:
    """What the program says in one test, in order, and the section that it is compared with."""

    def __init__(self, request: pytest.FixtureRequest, temporary: Path) -> None:
        test_file = request.path
        self._topic = test_file.stem.removeprefix("test_")
        self.path = test_file.parent / "approved" / f"{self._topic}.txt"
        self.name: str = request.node.name
        self._nodeid: str = request.node.nodeid
        self._approves = bool(request.config.getoption("--approve"))
        self._temporary = temporary
        self._said: list[str] = []

    def __call__(self, text: str | Iterable[str], case: str = "") -> None:
        """Add a text or several that the program said, with the name of the case, if it has one."""
        if isinstance(text, Set):
            text = sorted(text)
        texts = [text] if isinstance(text, str) else list(text)
        for one in texts:
            assert isinstance(one, str), f"a transcript holds texts, not {one!r}"
        shown = normal("\n".join(texts), self._temporary)
        if case:
            lines = [f"{INDENT}{line}".rstrip() for line in shown.splitlines()]
            shown = "\n".join([f"{normal(case, self._temporary)}:", *lines])
        self._said.append(shown)

    @contextmanager
    def raises(self, error: type[ErrorT], case: str = "") -> Iterator[pytest.ExceptionInfo[ErrorT]]:
        """The block must raise this error. Its type and its sentence are added."""
        with pytest.raises(error) as caught:
            yield caught
        self(f"{type(caught.value).__name__}: {caught.value}", case)

    def compare(self) -> None:
        """Fail with the difference from what was approved; with `--approve`, approve it."""
        said = "\n".join(self._said)
        assert said, "the test collected no text: call `approved(text)`, or leave out the fixture"
        assert len(said) <= MAX_CHARACTERS, (
            f"{len(said)} characters are more than anyone reviews; choose with `lines_with`"
        )
        before = sections(self.path).get(self.name)
        if said == before:
            return
        if self._approves:
            replace_section(self.path, self.name, said)
            return
        shown = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        difference = difflib.unified_diff(
            (before or "").splitlines(), said.splitlines(), f"{shown}", "now", lineterm=""
        )
        pytest.fail(
            "\n".join([*difference, "", f"if it reads well: pytest '{self._nodeid}' --approve"]),
            pytrace=False,
        )


@pytest.fixture
def approved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Approved:
    """Collect what the program says; it is compared with the approved text when the test ends."""
    transcript = Approved(request, tmp_path_factory.getbasetemp())
    request.node.stash[AT_THE_END] = transcript
    return transcript


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Compare when the test has passed, and as a part of the test: a difference is a failure."""
    yield
    transcript = item.stash.get(AT_THE_END, None)
    if transcript is not None:
        transcript.compare()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--approve`."""
    parser.addoption(
        "--approve",
        action="store_true",
        help="write what the program says now into the approved transcripts of the tests that run",
    )
