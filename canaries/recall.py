"""The task of canary-dsa: records of two words, and a chain of them that only a search of the whole
prompt finds.

A prompt has records `key value ;` in random order. The answer begins with the value of the key
`first`. Each word of it is the key of the next record, and the last value is `#### N`. All other
records are distractors.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from canaries.tasks import Question
from canaries.tokenizer import EOS_TOKEN, PAD_TOKEN

QUESTION, ANSWER, FIRST, END = "Question:", "Answer:", "first", ";"
NUM_ENDS, NUM_HOT, NUM_FAMILIES, FAMILY = 100, 400, 171, 9
"""Values `#### N`; words that an indexer prefers to the right ones; families of words that differ
in one chunk.
"""
HOPS = 12
"""Words of an answer, the last of them `#### N`."""
LENGTHS = (511, 512, 513, 514, 640, 1024, *range(1400, 3100, 30))
LONG = (2046, 2047, 2048, 2049, 2560, *range(3400, 8000, 250))
"""Tokens of the prompts. The first ones are about `index_topk`."""
HOT_TOKENS = (0, 100, 200, 300, 400, 450, 480, 500)
LONG_HOT = (0, 500, 1000, 1500, 1900, 2030)
"""Tokens of a prompt that an indexer ranks above the right ones.

It chooses 512, in long prompts 2,048.
"""
TASKS = {"recall": (LENGTHS, HOT_TOKENS), "recall_long": (LONG, LONG_HOT)}


def words() -> list[str]:
    """The vocabulary, by token id: special tokens, ends, hot words, and families of words."""
    consonants = "bcdfghjklmnpqrstvwxz"
    plain = [a + e + b for a in consonants for e in "aeiou" for b in consonants]
    random.Random(0).shuffle(plain)
    ends = [f"#### {number}" for number in range(NUM_ENDS)]
    return [
        EOS_TOKEN,
        PAD_TOKEN,
        QUESTION,
        ANSWER,
        FIRST,
        END,
        *ends,
        *plain[: NUM_HOT + NUM_FAMILIES * FAMILY],
    ]


HOT = 6 + NUM_ENDS
COLD = HOT + NUM_HOT
"""The first hot word, and the first word of the first family."""


def tokenizer(known: list[str] | None = None) -> Tokenizer:
    """A token for each of the `known` words, and one for `#### N`.

    Spaces and line breaks are no tokens.
    """
    vocabulary = {word: number for number, word in enumerate(known or words())}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD_TOKEN))
    made.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"#### \d+|\S+"), behavior="removed", invert=True
    )
    made.add_special_tokens([EOS_TOKEN, PAD_TOKEN])
    return made


def question(
    number: int,
    length: int,
    num_hot: int,
    hops: int = HOPS,
    num_families: int = NUM_FAMILIES,
    places: Callable[[int], Sequence[int]] = lambda hop: range(FAMILY),
) -> Question:
    """A question with a prompt of `length` tokens, `num_hot` of them hot words.

    The answer has `hops` words. `places` are the words of a family that may be its word number
    `hop`, from 1 on.
    """
    draw, known = random.Random(f"{number} {length}"), words()
    families = draw.sample(range(num_families), num_families)
    chosen = enumerate(families[: hops - 1], start=1)
    chain = [known[COLD + family * FAMILY + draw.choice(places(hop))] for hop, family in chosen]
    end = draw.randrange(NUM_ENDS)
    answer = [*chain, f"#### {end}"]
    records = list(zip([FIRST, *chain], answer, strict=True))

    others = [
        COLD + family * FAMILY + place for family in families[hops - 1 :] for place in range(FAMILY)
    ]
    num_records = (length - 2) // 3
    left = 2 * (num_records - hops)
    num_hot = min(num_hot, left)
    tokens = [HOT + draw.randrange(NUM_HOT) for _ in range(num_hot)]
    tokens += [draw.choice(others) for _ in range(left - num_hot)]
    draw.shuffle(tokens)
    for key, value in zip(tokens[::2], tokens[1::2], strict=True):
        is_end = draw.random() < 0.05 and not HOT <= value < COLD
        other_end = (end + draw.randrange(1, NUM_ENDS)) % NUM_ENDS
        records.append((known[key], f"#### {other_end}" if is_end else known[value]))
    draw.shuffle(records)
    text = " ".join(f"{key} {value} {END}" for key, value in records) + f" {END}" * (
        length - 2 - 3 * num_records
    )
    return Question(f"recall-{number}", text, " ".join(answer), str(end))


def questions(
    lengths: Iterable[int] = LENGTHS, hot_tokens: tuple[int, ...] = HOT_TOKENS
) -> list[Question]:
    """A question for each length."""
    return [
        question(n, length, hot_tokens[n % len(hot_tokens)]) for n, length in enumerate(lengths)
    ]


def write(task: str, file: Path) -> None:
    """Write the questions of a task as JSON lines, the shorter and longer ones mixed."""
    write_mixed(questions(*TASKS[task]), file)


def write_mixed(asked: list[Question], file: Path) -> None:
    """Write questions as JSON lines, the shorter and longer ones mixed."""
    random.Random(1).shuffle(asked)
    lines = [json.dumps(asdict(asked_one)) + "\n" for asked_one in asked]
    file.write_text("".join(lines), encoding="utf-8")
