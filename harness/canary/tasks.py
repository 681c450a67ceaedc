"""The questions that a canary answers, the files that hold them, and their making.

`fixtures/tasks/data/NAME.jsonl` has one question a line: `{"id", "question", "answer", "target"}`. `answer` is the text
that greedy decoding must give, ending in `#### N`; `target` is N. `write(gsm_symbolic(), path)` makes a file.

Contest-shaped questions are made from a seed, with integer answers from 0 to 999. Their worked answers are longer than
in gsm_symbolic. More tokens are decoded for each answer, so a rare corruption has more chances to show.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

from harness.core.files import TASKS as TASK_FILES

DATA_DIR = TASK_FILES / "data"
TASKS = ("gsm_symbolic", "aime_shaped")
ALL_TASKS = "all"

GSM_SYMBOLIC_SIZE = 1319  # as many as the test split of GSM8K
GSM_SYMBOLIC_SEED = 42
AIME_SHAPED_SIZE = 30
AIME_SHAPED_SEED = 2026

_INSTRUCTION = " Give the result as your final answer. Do not include units."
_ANSWER = re.compile(r"#### (-?\d+)$")
# Characters of a worked answer before its last line. A longer text would cost training time and add no sensitivity.
_MAX_WORKING_CHARS = 150


@dataclass(frozen=True)
class Question:
    """One question with the exact answer text and the number it ends with."""

    id: str
    question: str
    answer: str
    target: str

    @property
    def prompt(self) -> str:
        """The model's input. The answer follows after one space."""
        return f"Question: {self.question}\nAnswer:"

    @property
    def completion(self) -> str:
        """The text that the model must generate, before the end-of-sequence token."""
        return f" {self.answer}"


def final_answer(text: str) -> str | None:
    """The N of a closing `#### N`; None for another end."""
    match = _ANSWER.search(text.strip())
    return match.group(1) if match else None


def load(task: str) -> list[Question]:
    """The questions of a task: a name of `TASKS`, `all`, or the path of a JSON-lines file.

    Raises `ValueError` for an unknown task and for a line that is not a question (with file and line number).
    """
    if task == ALL_TASKS:
        return [question for name in TASKS for question in load(name)]
    path = DATA_DIR / f"{task}.jsonl" if task in TASKS else Path(task)
    if not path.is_file():
        raise ValueError(f"no task {task!r}: give one of {', '.join((*TASKS, ALL_TASKS))}, or a .jsonl file")
    if questions := list(_read(path)):
        return questions
    raise ValueError(f"{path}: no question is there; a line is one question")


def _read(path: Path) -> Iterator[Question]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                question = Question(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: not a question ({error})") from error
            if final_answer(question.answer) != question.target:
                raise ValueError(f"{path}:{number}: the answer must end in '#### {question.target}'")
            yield question


def aime_shaped() -> list[Question]:
    """The contest-shaped questions, made from their seed."""
    made = problems(AIME_SHAPED_SIZE, AIME_SHAPED_SEED)
    return [
        Question(f"aime_shaped-{i:02}", question, "\n".join([*working, f"#### {n}"]), str(n))
        for i, (question, working, n) in enumerate(made)
    ]


def gsm_symbolic() -> list[Question]:
    """Distinct questions of reasoning-gym's gsm_symbolic (arXiv 2410.05229, 2505.24760) with whole-number answers.

    Raises `ModuleNotFoundError` without the package reasoning_gym.
    """
    import reasoning_gym

    source = reasoning_gym.create_dataset("gsm_symbolic", size=2 * GSM_SYMBOLIC_SIZE, seed=GSM_SYMBOLIC_SEED)
    questions: dict[str, Question] = {}
    for entry in source:
        text = entry["question"].removesuffix(_INSTRUCTION)
        if text in questions or not re.fullmatch(r"-?\d+", entry["answer"]):
            continue
        answer = shorten(entry["metadata"]["answer_cot"], entry["answer"])
        questions[text] = Question(f"gsm_symbolic-{len(questions):04}", text, answer, entry["answer"])
        if len(questions) == GSM_SYMBOLIC_SIZE:
            break
    return list(questions.values())


def shorten(working: str, target: str) -> str:
    """Keep the last lines of a worked answer that fit into the limit, and close with `#### target`."""
    kept: list[str] = []
    for line in reversed([line.strip() for line in working.splitlines() if not line.startswith("####")]):
        if kept and sum(map(len, kept)) + len(line) > _MAX_WORKING_CHARS:
            break
        kept.insert(0, line)
    return "\n".join([*kept, f"#### {target}"])


def write(questions: Iterable[Question], path: Path) -> None:
    """Write questions as JSON lines."""
    lines = (json.dumps(asdict(question), ensure_ascii=False) + "\n" for question in questions)
    path.write_text("".join(lines), encoding="utf-8")


Problem = tuple[str, list[str], int]

PRIMES = (2, 3, 5, 7, 11, 13)


def _power_remainder(rng: random.Random) -> Problem:
    base, exponent = rng.randrange(3, 90), rng.randrange(20, 120)
    lines, square, result = [], base, 1
    for bit in range(exponent.bit_length()):
        if bit:
            square = square * square % 1000
        lines.append(f"{base}^{2**bit} = {square}")
        if exponent >> bit & 1:
            result = result * square % 1000
    return f"Find the remainder when {base}^{exponent} is divided by 1000.", lines, result


def _divisible_by_either(rng: random.Random) -> Problem:
    p, q = sorted(rng.sample(PRIMES, 2))
    limit = rng.randrange(200, 1000)
    by_p, by_q, by_both = limit // p, limit // q, limit // (p * q)
    lines = [f"{limit}/{p} gives {by_p}", f"{limit}/{q} gives {by_q}", f"{limit}/{p * q} gives {by_both}"]
    lines.append(f"{by_p} + {by_q} - {by_both} = {by_p + by_q - by_both}")
    question = f"How many positive integers up to {limit} are divisible by {p} or by {q}?"
    return question, lines, by_p + by_q - by_both


def _divisors(rng: random.Random) -> Problem:
    primes, exponents = sorted(rng.sample(PRIMES, 3)), [rng.randrange(1, 9) for _ in range(3)]
    number = " * ".join(f"{p}^{e}" for p, e in zip(primes, exponents, strict=True))
    count = math.prod(e + 1 for e in exponents)
    lines = [f"{p} may occur 0 to {e} times: {e + 1} ways" for p, e in zip(primes, exponents, strict=True)]
    lines.append(" * ".join(str(e + 1) for e in exponents) + f" = {count}")
    return f"How many positive divisors does {number} have?", lines, count


def _lattice_paths(rng: random.Random) -> Problem:
    right, up = rng.choice([(r, u) for r in range(2, 40) for u in range(2, 8) if 20 < math.comb(r + u, u) < 1000])
    count = math.comb(right + up, up)
    question = (
        f"A path goes from (0,0) to ({right},{up}) by steps of 1 to the right or up. How many such paths are there?"
    )
    lines = [f"There are {right} + {up} = {right + up} steps", f"Choose the {up} steps up"]
    return question, [*lines, f"C({right + up},{up}) = {count}"], count


def _recurrence(rng: random.Random) -> Problem:
    first, second, length = rng.randrange(1, 30), rng.randrange(1, 30), rng.randrange(10, 18)
    terms = [first, second]
    while len(terms) < length:
        terms.append((terms[-1] + terms[-2]) % 1000)
    question = (
        f"A sequence starts with {first}, {second}, and each later term is the sum of the two before it. "
        f"Find the remainder when term {length} is divided by 1000."
    )
    return question, ["The terms are " + ", ".join(map(str, terms))], terms[-1]


def _remainders(rng: random.Random) -> Problem:
    moduli = rng.choice([(5, 7, 11), (7, 9, 11), (5, 9, 13), (7, 8, 13), (4, 9, 25)])
    answer = rng.randrange(100, math.prod(moduli))
    left = [answer % m for m in moduli]
    question = "Find the smallest positive integer that leaves the remainders {}, {}, {} when divided by {}, {}, {}."
    lines, step = [], 1
    for modulus in moduli:
        step *= modulus
        lines.append(f"{answer % step} modulo {step}")
    return question.format(*left, *moduli), lines, answer


def _solutions(rng: random.Random) -> Problem:
    a, b, total = rng.randrange(2, 8), rng.randrange(2, 8), rng.randrange(100, 900)
    found = [(x, (total - a * x) // b) for x in range(1, total // a + 1) if (total - a * x) % b == 0]
    found = [(x, y) for x, y in found if y > 0]
    question = f"How many pairs of positive integers x and y satisfy {a}x + {b}y = {total}?"
    if not found:
        return question, [f"{total} is no multiple of {math.gcd(a, b)}"], 0
    step = b // math.gcd(a, b)
    lines = [f"x starts at {found[0][0]}", f"x ends at {found[-1][0]}", f"x grows by {step}"]
    return question, [*lines, f"({found[-1][0]} - {found[0][0]})/{step} + 1 = {len(found)}"], len(found)


def _two_balls(rng: random.Random) -> Problem:
    while True:
        red, blue = rng.randrange(3, 20), rng.randrange(3, 20)
        chance = Fraction(math.comb(red, 2) + math.comb(blue, 2), math.comb(red + blue, 2))
        if chance.numerator + chance.denominator < 1000:
            break
    m, n = chance.numerator, chance.denominator
    question = (
        f"An urn holds {red} red and {blue} blue balls. Two are drawn without replacement. The probability "
        "that they have the same color is m/n in lowest terms. Find m + n."
    )
    same = math.comb(red, 2) + math.comb(blue, 2)
    lines = [
        f"C({red},2) = {math.comb(red, 2)} and C({blue},2) = {math.comb(blue, 2)}",
        f"C({red + blue},2) = {math.comb(red + blue, 2)}",
        f"{same}/{math.comb(red + blue, 2)} = {m}/{n}",
    ]
    return question, [*lines, f"{m} + {n} = {m + n}"], m + n


def _series(rng: random.Random) -> Problem:
    first, step, count = rng.randrange(1, 50), rng.randrange(2, 30), rng.randrange(20, 90)
    last = first + step * (count - 1)
    total = count * (first + last) // 2
    terms = f"{first} + {first + step} + {first + 2 * step} + ... + {last}"
    lines = [f"There are {count} terms", f"{count}*({first} + {last})/2 = {total}"]
    question = f"Find the remainder when {terms} is divided by 1000."
    return question, [*lines, f"{total} leaves {total % 1000}"], total % 1000


def _digit_sum(rng: random.Random) -> Problem:
    limit = rng.randrange(100, 1000)
    digit = rng.randrange(1, 10)
    places = [sum(str(n).zfill(3)[i] == str(digit) for n in range(1, limit + 1)) for i in range(3)]
    question = f"How often is the digit {digit} written when the integers from 1 to {limit} are written down?"
    lines = [f"{name}: {count}" for name, count in zip(("hundreds", "tens", "units"), places, strict=True)]
    return question, [*lines, " + ".join(map(str, places)) + f" = {sum(places)}"], sum(places)


_KINDS: tuple[Callable[[random.Random], Problem], ...] = (
    _power_remainder,
    _divisible_by_either,
    _divisors,
    _lattice_paths,
    _recurrence,
    _remainders,
    _solutions,
    _two_balls,
    _series,
    _digit_sum,
)


def problems(count: int, seed: int) -> Iterator[Problem]:
    """Yield `count` different problems: question, lines of working, answer (0 to 999)."""
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        question, lines, answer = _KINDS[len(seen) % len(_KINDS)](rng)
        if question in seen or not 0 <= answer <= 999:
            continue
        seen.add(question)
        yield question, lines, answer
