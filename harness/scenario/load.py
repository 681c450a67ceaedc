"""Scenario files -> checked scenarios, or an InputError with file, line, column and the way to mend
it.

Tags and code in YAML are refused, and the size is limited. Scalars follow YAML 1.2: `on`, `off`,
`yes` and `no` are words, dates are text, and only true and false are booleans.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

import harness
from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.scenario import matrix
from harness.scenario.schema import Location, Problem, Scenario, explain_problems

SUFFIXES = (".yaml", ".yml")
RecordT = TypeVar("RecordT", bound=BaseModel)
# People send scenario files to each other. These limits keep a file from taking all memory or the
# whole stack.
MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_VALUES = 20_000


def shipped_directory() -> Path:
    """The folder of the harness's own scenarios: beside the package in a checkout, inside it when
    installed.
    """
    package = (
        Path(harness.__file__).parent if harness.__file__ else Path(next(iter(harness.__path__)))
    )
    inside = package / "_scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"


def default_directory() -> Path:
    """`./scenarios` if it exists, else the folder of the shipped scenarios."""
    here = Path("scenarios")
    return here if here.is_dir() else shipped_directory()


def _every(name: str) -> bool:
    return True


def load_scenarios(
    directory: Path | None = None, *, whole: Callable[[str], bool] = _every, only: str = ""
) -> list[Scenario]:
    """The scenarios of a folder and of the folders in it, by file name, or the one of a file.

    Raises InputError for the first problem.

    `whole`: by the name of its file, whether a shipped scenario's parameters and cases are checked
    too. With `only`, a file `ONLY.yaml` that holds the scenario of this name is read alone.
    """
    folder = default_directory() if directory is None else directory
    if folder.is_file() or folder.suffix in SUFFIXES:
        return [load_scenario(folder)]
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of scenarios; name another with --scenarios")
    paths = scenario_files(folder)
    if not paths:
        raise InputError(f"{folder}: no scenario here; a scenario is a file that ends in .yaml")
    for path in paths:
        if path.name == f"{only}{SUFFIXES[0]}":
            found = load_scenario(path, whole)
            if found.name == only:
                return [found]
    if not folder.resolve().is_relative_to(shipped_directory().resolve()):
        # A user's files are checked whole each time. Those of the harness are checked by its tests.
        whole = _every
    origin: dict[str, Path] = {}
    scenarios = []
    for path in paths:
        scenario = load_scenario(path, whole)
        if (first := origin.setdefault(scenario.name, path)) != path:
            message = f"the name {scenario.name!r} is taken by {first}; rename one of them"
            raise _input_error(Problem(("name",), message), load_record(path, Scenario)[1], path)
        scenarios.append(scenario)
    return scenarios


def scenario_files(folder: Path) -> list[Path]:
    """Every scenario file in `folder` and in the folders in it, in the order of the file names.

    Hidden folders are left out, so that a checkout with `.git` or `.github` can be named. A link to
    a folder is followed, and each folder is read once. Raises InputError for a folder that cannot
    be read: its scenarios must not be missing without a word.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}; mend its rights")

    read: set[Path] = set()
    found: list[Path] = []
    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        here = Path(place)
        if here.resolve() in read:
            # A link leads back here. Without this the walk would never end.
            folders.clear()
            continue
        read.add(here.resolve())
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [here / name for name in files if Path(name).suffix in SUFFIXES]
    return sorted(found, key=lambda path: (path.name, path))


def load_scenario(path: Path, whole: Callable[[str], bool] = _every) -> Scenario:
    """One scenario file.

    Raises InputError for its first problem. `whole` as for `load_scenarios`.
    """
    return _read(path, _content(path), whole(path.stem), frozenset(KERNELS.names()))


@functools.lru_cache(maxsize=512)
def _read(path: Path, content: bytes, is_whole: bool, kernels: frozenset[str]) -> Scenario:
    """The scenario of a file, read once in a process.

    It is read again if the file changes, or if plug-ins register kernels, which it may name.
    """
    scenario, found = load_record(path, Scenario)
    problems = list(matrix.check(scenario, whole=is_whole))
    if problems:
        raise _first(problems, found, path)
    return scenario


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}:1:1: cannot be read: {error.strerror}") from None


def load_record(path: Path, model: type[RecordT]) -> tuple[RecordT, Document]:
    """A file as an object of `model`, with the places of its values.

    Raises InputError for its first problem.
    """
    try:
        found = read_document(_content(path))
    except DocumentError as error:
        raise InputError(f"{path}:{error.line}:{error.column}: {error.message}") from None
    if not isinstance(found.data, dict):
        raise _input_error(
            Problem((), "the file must be `key: value` lines, not a list or a word"), found, path
        )
    try:
        # By way of JSON: strict validation then takes a list for a tuple, and still no number for a
        # text.
        return model.model_validate_json(json.dumps(found.data), strict=True), found
    except ValidationError as error:
        raise _first(explain_problems(error, model), found, path) from None


def _first(problems: list[Problem], found: Document, path: Path) -> InputError:
    """The first problem in the file. A missing key comes after wrong ones."""
    return _input_error(
        min(problems, key=lambda p: (not p.location, found.place(p.location, p.at_key))),
        found,
        path,
    )


def _input_error(problem: Problem, found: Document, path: Path) -> InputError:
    line, column = found.place(problem.location, problem.at_key)
    return InputError(f"{path}:{line}:{column}: {problem.message}")


class DocumentError(Exception):
    """The text is no valid document. Has one clause, and the line and column from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


@dataclass
class Document:
    """Plain data, and the events of its text.

    They say where a value is, which only a message needs.
    """

    data: Any
    events: list[yaml.Event]

    @functools.cached_property
    def _places(self) -> dict[tuple[Location, bool], tuple[int, int]]:
        """Line and column of each value, and of each key, by its path."""
        events = iter(self.events)
        return dict(_places(next(events), events, ()))

    def place(self, location: Location, at_key: bool = False) -> tuple[int, int]:
        """Line and column of the value (or key) at `location`, or of the innermost known one around
        it.
        """
        while location:
            for is_key in (at_key, False):
                if found := self._places.get((location, is_key)):
                    return found
            location = location[:-1]
        return self._places[(), False]


WORDS = {word: None for word in ("", "~", "null", "Null", "NULL")} | {
    form: word == "true"
    for word in ("true", "false")
    for form in (word, word.title(), word.upper())
}
"""Words without quotes that are no text and no number -> their value."""


def read_document(content: bytes) -> Document:
    """Parse one YAML document. Raises DocumentError."""
    if len(content) > MAX_BYTES:
        raise DocumentError(
            f"the file has {len(content)} bytes; a scenario has at most {MAX_BYTES}"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError("the text is not UTF-8; save the file as UTF-8", line) from None
    try:
        try:
            events = _events(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError:
            # libyaml is ten times as fast, and its messages are other ones.
            events = _events(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(
            f"character U+{error.character:04X} is not allowed; remove it", line
        ) from None
    if not isinstance(events[1], yaml.DocumentStartEvent):
        raise DocumentError(
            "the file is empty; a scenario needs at least a name, a summary and a system"
        )
    # Behind the starts of the stream and of the document.
    rest = iter(events[2:])
    data = _built(next(rest), rest)
    # Behind the end of the document.
    if not isinstance(second := next(itertools.islice(rest, 1, None)), yaml.StreamEndEvent):
        raise DocumentError(
            "a second document starts here; write one scenario a file",
            *_position(second.start_mark),
        )
    return Document(data, events[2:])


def _events(text: str, loader: type[yaml.SafeLoader]) -> list[Any]:
    """The events of a text. Raises YAMLError, and DocumentError if there are too many."""
    found = list(itertools.islice(iter(loader(text).get_event, None), MAX_VALUES + 1))
    if len(found) > MAX_VALUES:
        raise DocumentError(
            f"more than {MAX_VALUES} values; split the scenario", *_position(found[-1].start_mark)
        )
    return found


def _syntax_error(error: yaml.MarkedYAMLError) -> DocumentError:
    place = _position(error.problem_mark or error.context_mark)
    problem = (error.problem or "not YAML").replace("\n", " ")
    if "'\\t'" in problem:
        return DocumentError("a tab cannot indent YAML; use spaces", *place)
    return DocumentError(f"not YAML: {problem}; fix the syntax here or just above", *place)


def _places(
    event: yaml.Event, events: Iterator[yaml.Event], location: Location
) -> Iterator[tuple[tuple[Location, bool], tuple[int, int]]]:
    """The path of each value and whether it is of its key, with the place, of the value that starts
    with `event`.
    """
    yield (location, False), _position(event.start_mark)
    if isinstance(event, yaml.MappingStartEvent):
        while isinstance(key := next(events), yaml.ScalarEvent):
            yield ((*location, key.value), True), _position(key.start_mark)
            yield from _places(next(events), events, (*location, key.value))
    elif isinstance(event, yaml.SequenceStartEvent):
        for index, item in enumerate(iter(lambda: next(events), None)):
            if isinstance(item, yaml.SequenceEndEvent):
                return
            yield from _places(item, events, (*location, index))


def _built(event: Any, events: Iterator[Any], depth: int = 1) -> Any:
    """The value that starts with `event`; its last event is taken too."""
    if type(event) is yaml.ScalarEvent:
        return _scalar(event)
    _refuse_marked(event)
    if depth > MAX_DEPTH:
        raise DocumentError(
            f"nested more than {MAX_DEPTH} deep; a scenario needs five",
            *_position(event.start_mark),
        )
    if type(event) is yaml.MappingStartEvent:
        return _mapping(events, depth)
    items: list[Any] = []
    while type(item := next(events)) is not yaml.SequenceEndEvent:
        items.append(
            _scalar(item) if type(item) is yaml.ScalarEvent else _built(item, events, depth + 1)
        )
    return items


def _refuse_marked(event: Any) -> None:
    if event.anchor:  # An alias has no tag.
        raise DocumentError(
            "anchors and aliases are not allowed; write the value out", *_position(event.start_mark)
        )
    if event.tag:
        raise DocumentError(
            f"the tag {event.tag} is not allowed; write a plain value", *_position(event.start_mark)
        )


def _mapping(events: Iterator[Any], depth: int) -> dict[str, Any]:
    """The mapping whose start was taken, as a dictionary. Raises DocumentError for a key twice."""
    mapping: dict[str, Any] = {}
    keys: dict[str, yaml.ScalarEvent] = {}
    while type(event := next(events)) is not yaml.MappingEndEvent:
        if type(event) is not yaml.ScalarEvent or event.anchor or event.tag:
            _refuse_marked(event)
            raise DocumentError(
                "a key must be a word, not a list or a mapping", *_position(event.start_mark)
            )
        key = event.value
        if key in mapping:
            wrong = (
                f"duplicate key {key!r}, first on line {_position(keys[key].start_mark)[0]};"
                " remove one"
            )
            raise DocumentError(wrong, *_position(event.start_mark))
        keys[key] = event
        value = next(events)
        mapping[key] = (
            _scalar(value) if type(value) is yaml.ScalarEvent else _built(value, events, depth + 1)
        )
    return mapping


def _scalar(event: Any) -> Any:
    """The value of a word, a number or a text in quotes. Raises DocumentError."""
    if event.anchor or event.tag:
        _refuse_marked(event)
    # Text in quotes is text, whatever it looks like.
    if not event.implicit[0]:
        return event.value
    if len(event.value) > 20 and re.fullmatch("[-+]?[0-9]+", event.value):
        raise DocumentError(
            "the number has more than 20 digits; write a smaller one", *_position(event.start_mark)
        )
    return _plain(event.value)


@functools.cache
def _plain(word: str) -> Any:
    """The value of a word without quotes. Files repeat most of their words."""
    if word in WORDS:
        return WORDS[word]
    if re.fullmatch("[-+]?[0-9]+", word):
        return int(word)
    return (
        float(word)
        if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", word)
        else word
    )


def _position(mark: Any) -> tuple[int, int]:
    """Line and column from 1; the start of the file if YAML gives no place."""
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)
