"""The reference engine as a backend: text to tokens, continuous batching, stop strings, tokens to text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tokenizers import Tokenizer

from harness.accuracy.backends import Answer, Identity, OnAnswer, cut_at_stop, has_invalid_text


@dataclass(frozen=True, slots=True)
class NewToken:
    """One token that a step of the engine gave a request; `finite` is false when its logits were not."""

    request: int
    token: int
    finite: bool = True


class TextEngine(Protocol):
    """What this backend needs of an engine: tokens in, tokens out, and its state kept from call to call."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_id(self) -> int: ...

    @property
    def max_length(self) -> int:
        """Tokens, prompt and answer together, that one request may come to."""
        ...

    def add(self, tokens: Sequence[int], max_tokens: int) -> int:
        """Queue a request for up to `max_tokens` greedy tokens; returns its number."""
        ...

    def step(self) -> Iterable[NewToken]:
        """Run one step of the batch; empty when nothing is left to do."""
        ...

    def finish(self, request: int) -> None:
        """End a request before it has all its tokens, and take its pages back."""
        ...


@dataclass(slots=True)
class _Request:
    """A prompt in flight and what it was given so far."""

    position: int
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    finite: bool = True


class EngineBackend:
    """Feeds a `TextEngine`. All prompts are queued at once: the engine's own scheduler forms the batches."""

    def __init__(self, engine: TextEngine, tokenizer: Tokenizer, identity: Identity) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._identity = identity
        self._enders: dict[tuple[str, ...], frozenset[int] | None] = {}

    @property
    def identity(self) -> Identity:
        """Which checkpoint runs, in which dtype."""
        return self._identity

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int, stop: Sequence[str], on_answer: OnAnswer | None = None
    ) -> list[Answer]:
        """Greedy answers in the order of `prompts`; a prompt too long for the engine is unanswered, with its reason."""
        answers: dict[int, Answer] = {}
        requests: dict[int, _Request] = {}

        def done(position: int, answer: Answer) -> None:
            answers[position] = answer
            if on_answer:
                on_answer(position, answer)

        try:
            for position, encoded in enumerate(self._tokenizer.encode_batch(list(prompts))):
                room = self._engine.max_length - len(encoded.ids)
                if room < 1:
                    reason = f"the prompt has {len(encoded.ids)} tokens, the engine takes {self._engine.max_length - 1}"
                    done(position, Answer("", "error", unanswered=reason))
                    continue
                limit = min(max_tokens, room)
                requests[self._engine.add(encoded.ids, limit)] = _Request(position, limit)
            while requests:
                self._step(requests, stop, done)
        finally:
            # Ctrl-C in the middle must not leave requests in an engine that may be asked again.
            for number in requests:
                self._engine.finish(number)
        return [answers[position] for position in range(len(prompts))]

    def close(self) -> None:
        """Nothing is held beyond the engine itself."""

    def _step(self, requests: dict[int, _Request], stop: Sequence[str], done: OnAnswer) -> None:
        stepped: list[tuple[int, _Request]] = []
        for new in self._engine.step():
            request = requests.get(new.request)
            if request is None:
                continue
            request.tokens.append(new.token)
            request.finite = request.finite and new.finite
            stepped.append((new.request, request))
        stopped = self._have_stopped([request for _, request in stepped], stop)
        for (number, request), has_stopped in zip(stepped, stopped, strict=True):
            finish = self._finish(request, has_stopped)
            if finish:
                del requests[number]
                self._engine.finish(number)
                done(request.position, self._answer(request, finish, stop))

    def _finish(self, request: _Request, has_stopped: bool) -> str | None:
        if request.tokens[-1] == self._engine.eos_token_id:
            return "stop"
        if len(request.tokens) >= request.max_tokens:
            return "length"
        return "stop" if has_stopped else None

    def _have_stopped(self, requests: Sequence[_Request], stop: Sequence[str]) -> list[bool]:
        """Whether each request's newest token completes a stop string.

        Each token is a byte at least, so that as many tokens as the longest stop string has bytes hold all of it.
        """
        longest = max((len(word.encode()) for word in stop), default=0)
        if not longest:
            return [False] * len(requests)
        enders, known = self._tokens_that_may_end(tuple(stop)), range(self._engine.vocab_size)
        stopped = [False] * len(requests)
        asked = [at for at, request in enumerate(requests) if enders is None or request.tokens[-1] in enders]
        ends = [[token for token in requests[at].tokens[-longest:] if token in known] for at in asked]
        for at, text in zip(asked, self._tokenizer.decode_batch(ends), strict=True):
            stopped[at] = cut_at_stop(text, stop)[1]
        return stopped

    def _tokens_that_may_end(self, stop: tuple[str, ...]) -> frozenset[int] | None:
        """The tokens whose own text holds the last character of a stop string; None when any token may.

        Most tokens hold none, and looking at 256 texts after each step costs more than the scheduler does. A character
        of several bytes may be spread over tokens, and some tokenizers drop blanks of a text of one token.
        """
        if stop not in self._enders:
            last = {word[-1] for word in stop if word}
            tokens = range(self._engine.vocab_size)
            texts = self._tokenizer.decode_batch([[token] for token in tokens])
            self._enders[stop] = (
                frozenset(token for token, text in zip(tokens, texts, strict=True) if last & set(text))
                if all(char.isascii() and not char.isspace() for char in last)
                else None
            )
        return self._enders[stop]

    def _answer(self, request: _Request, finish: str, stop: Sequence[str]) -> Answer:
        tokens = request.tokens
        inside = [token for token in tokens if 0 <= token < self._engine.vocab_size]
        text, _ = cut_at_stop(self._decode(tokens), stop)
        invalid = not request.finite or len(inside) < len(tokens) or has_invalid_text(text, finish)
        return Answer(text, finish, len(tokens), invalid)

    def _decode(self, tokens: Sequence[int]) -> str:
        known = [token for token in tokens if 0 <= token < self._engine.vocab_size]
        return str(self._tokenizer.decode(known))
