from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from harness.accuracy.backends import Answer, Identity
from harness.judge.served_engine import ReferenceBackend
from tests.transcripts import Approved

EOS = 256


@pytest.fixture
def tokenizer() -> Tokenizer:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    return built


class EchoEngine:
    """Continues each prompt by a script: prompt text -> the tokens that it gives, one a step, then
    end of sequence.
    """

    vocab_size = 257
    eos_token_id = EOS
    max_length = 40

    def __init__(
        self, tokenizer: Tokenizer, script: dict[str, list[int]], not_finite: set[str] | None = None
    ) -> None:
        self.tokenizer, self.script, self.not_finite = tokenizer, script, not_finite or set()
        self.live: dict[int, tuple[str, list[int]]] = {}
        self.finished: list[int] = []
        self.limits: list[int] = []
        self.num_steps = 0

    def add(self, tokens: Sequence[int], max_tokens: int) -> int:
        prompt = self.tokenizer.decode(list(tokens))
        number = len(self.limits)
        self.limits.append(max_tokens)
        self.live[number] = (prompt, [*self.script[prompt], EOS])
        return number

    def step(self) -> Iterable[tuple[int, int, bool]]:
        self.num_steps += 1
        return [
            (n, tokens.pop(0), prompt not in self.not_finite)
            for n, (prompt, tokens) in self.live.items()
        ]

    def finish(self, request: int) -> None:
        self.finished.append(request)
        del self.live[request]


def answers(
    engine: EchoEngine, prompts: list[str], stop: tuple[str, ...] = (), max_tokens: int = 30
) -> list[Answer]:
    backend = ReferenceBackend(
        engine, engine.tokenizer, Identity("toy", "engine", "float32", "sha256:00")
    )
    return backend.generate(prompts, max_tokens=max_tokens, stop=stop)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text).ids)


def test_answers_end_at_the_end_of_sequence_at_a_stop_string_or_at_the_limit(
    tokenizer: Tokenizer,
) -> None:
    script = {
        "a": ids(tokenizer, "yes"),
        "b": ids(tokenizer, "noQuestion: x"),
        "c": ids(tokenizer, "z" * 50),
    }
    engine = EchoEngine(tokenizer, script)
    found = answers(engine, ["a", "b", "c"], stop=("Question:",))
    assert [(answer.text, answer.finish, answer.num_tokens) for answer in found] == [
        ("yes", "stop", 4),
        ("no", "stop", 11),
        ("z" * 30, "length", 30),
    ]
    assert engine.live == {} and sorted(engine.finished) == [0, 1, 2]
    assert not any(answer.had_invalid_tokens for answer in found)


@pytest.mark.parametrize("stop", ["Q:", "\n", "ende", "grün", "é", " \t"])
def test_a_stop_string_is_seen_at_its_last_token_whatever_it_ends_in(
    tokenizer: Tokenizer, stop: str
) -> None:
    engine = EchoEngine(tokenizer, {"p": ids(tokenizer, f"abc{stop}xyz")})
    (answer,) = answers(engine, ["p"], stop=("never", stop))
    assert (answer.text, answer.finish) == ("abc", "stop")
    assert engine.num_steps == 3 + len(stop.encode())


def test_all_prompts_are_in_the_engine_at_once(tokenizer: Tokenizer) -> None:
    script = {name: ids(tokenizer, "12345") for name in "abcdef"}
    engine = EchoEngine(tokenizer, script)
    answers(engine, list("abcdef"))
    assert engine.num_steps == 6


def test_logits_that_are_not_finite_and_tokens_outside_the_vocabulary_mark_an_answer_invalid(
    tokenizer: Tokenizer,
) -> None:
    script = {"a": ids(tokenizer, "5"), "b": [*ids(tokenizer, "6"), 999], "c": ids(tokenizer, "7")}
    found = answers(EchoEngine(tokenizer, script, not_finite={"a"}), ["a", "b", "c"])
    assert [(answer.text, answer.had_invalid_tokens) for answer in found] == [
        ("5", True),
        ("6", True),
        ("7", False),
    ]


def test_bytes_that_are_no_text_mark_an_answer_invalid_unless_the_limit_cut_a_character(
    tokenizer: Tokenizer,
) -> None:
    euro = ids(tokenizer, "€")
    script = {"a": [*euro[:2], *ids(tokenizer, "x")], "b": [*ids(tokenizer, "y"), *euro]}
    found = answers(EchoEngine(tokenizer, script), ["a", "b"], max_tokens=3)
    assert [answer.had_invalid_tokens for answer in found] == [True, False]


def test_a_prompt_longer_than_the_engine_takes_is_unanswered_and_the_others_are_not(
    tokenizer: Tokenizer,
    approved: Approved,
) -> None:
    engine = EchoEngine(
        tokenizer, {"a": ids(tokenizer, "1"), "b" * 35: ids(tokenizer, "123456789")}
    )
    long, short, cut = answers(engine, ["x" * 40, "a", "b" * 35])
    approved(long.unanswered)
    assert short.text == "1"
    assert (cut.text, cut.finish, engine.limits) == ("12345", "length", [30, 5])


def test_an_interrupted_call_leaves_no_request_in_the_engine(tokenizer: Tokenizer) -> None:
    engine = EchoEngine(
        tokenizer, {"a": [], "b": ids(tokenizer, "long"), "c": ids(tokenizer, "longer")}
    )

    def interrupt(position: int, answer: Answer) -> None:
        raise KeyboardInterrupt

    backend = ReferenceBackend(engine, tokenizer, Identity("toy", "engine", "float32", "sha256:00"))
    with pytest.raises(KeyboardInterrupt):
        backend.generate(["a", "b", "c"], max_tokens=9, stop=(), on_answer=interrupt)
    assert engine.live == {}
