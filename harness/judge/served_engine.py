"""The reference engine on a checkpoint as a backend: text to tokens, continuous batching, stop
strings, and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch_poison.patterns import NATURAL, Poison

from harness.accuracy.backends import (
    Answer,
    Identity,
    OnAnswer,
    cut_at_stop,
    describe_directory,
    has_invalid_text,
)
from harness.core.catalog import cuda_twins
from harness.core.engine_params import EngineParams
from harness.core.errors import InputError
from harness.core.extras import tokenizers
from harness.core.files import FIXTURES
from harness.core.systems import ENGINE_KERNELS
from harness.engine.engine import ReferenceEngine
from harness.engine.model import checkpoint
from harness.engine.schedule.config import PAGE_SIZE, EngineModelConfig, num_pages
from harness.engine.schedule.sequence import Sequence as EngineSequence

AS_IT_IS = Poison(NATURAL, frozenset())
"""The poison of a measurement of accuracy: memory keeps the values of its last owner, as in
production.
"""

PROMPTS_TOGETHER = 4
"""On a GPU with graphs, prompts start when one in this many places is free."""

_SIZES = (
    "hidden_size",
    "num_heads",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)
_MAX_MODEL_LEN = 2048
_TYPICAL_TOKENS = 4 * PAGE_SIZE


class ServedEngine:
    """A `ReferenceEngine` that takes request numbers and returns new tokens; it keeps no logits."""

    def __init__(self, engine: ReferenceEngine, vocab_size: int, eos_token_id: int) -> None:
        self.engine = engine
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self._live: dict[int, EngineSequence] = {}

    @property
    def max_length(self) -> int:
        """The most tokens of a request, prompt and answer: bounded by the block table's width and
        by the pool.
        """
        state = int(self.engine.scheduler.needs_state)
        return min(
            self.engine.max_model_len, (self.engine.pool.num_usable_blocks - state) * PAGE_SIZE
        )

    def add(self, tokens: Sequence[int], max_tokens: int) -> int:
        """Queue a request for up to `max_tokens` greedy tokens. Returns its number."""
        sequence = self.engine.add_request(list(tokens), max_tokens)
        self._live[sequence.request] = sequence
        return sequence.request

    def step(self) -> list[tuple[int, int, bool]]:
        """Run one step of the batch.

        Returns requests, their new tokens, and whether the logits were finite.

        A request with an unfinished prompt has no new token.
        """
        sampled = [item for item in self.engine.step() if item.tokens]
        if not sampled:
            return []
        # Only whether they are finite is kept: logits of all tokens of thousands of answers would
        # fill the memory.
        newest = torch.stack([item.logits[len(item.tokens) - 1] for item in sampled])
        return [
            (item.sequence.request, item.tokens[-1], is_finite)
            for item, is_finite in zip(sampled, newest.isfinite().all(dim=-1).tolist(), strict=True)
            if item.sequence.request in self._live
        ]

    def finish(self, request: int) -> None:
        """End a request and free its pages.

        It may be running, waiting, or finished by its own limit.
        """
        sequence = self._live.pop(request)
        scheduler = self.engine.scheduler
        if sequence in scheduler.running:
            scheduler.finish(sequence)
        elif sequence in scheduler.waiting:
            # A waiting request has no blocks to give back.
            scheduler.waiting.remove(sequence)


@dataclass(slots=True)
class _Request:
    """A prompt in flight and its tokens so far."""

    position: int
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    finite: bool = True


class ReferenceBackend:
    """Queues all prompts at once, so that the engine's own scheduler forms the batches."""

    def __init__(
        self, engine: ServedEngine, tokenizer: tokenizers.Tokenizer, identity: Identity
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self.identity = identity
        self._enders: dict[tuple[str, ...], frozenset[int] | None] = {}

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        stop: Sequence[str],
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        """Greedy answers in the order of `prompts`.

        A prompt too long for the engine is unanswered, with a reason.
        """
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
                    reason = (
                        f"the prompt has {len(encoded.ids)} tokens, the engine takes"
                        f" {self._engine.max_length - 1}"
                    )
                    done(position, Answer("", "error", unanswered=reason))
                    continue
                limit = min(max_tokens, room)
                requests[self._engine.add(encoded.ids, limit)] = _Request(position, limit)
            while requests:
                self._step(requests, stop, done)
        finally:
            # Ctrl-C must not leave requests in an engine that may be used again.
            for number in requests:
                self._engine.finish(number)
        return [answers[position] for position in range(len(prompts))]

    def close(self) -> None:
        """Do nothing: a backend needs this method, and this one holds nothing beside the engine."""

    def _step(self, requests: dict[int, _Request], stop: Sequence[str], done: OnAnswer) -> None:
        stepped: list[tuple[int, _Request]] = []
        for number, token, is_finite in self._engine.step():
            if (request := requests.get(number)) is not None:
                request.tokens.append(token)
                request.finite = request.finite and is_finite
                stepped.append((number, request))
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

        A token has at least one byte, so the longest stop string fits into as many tokens as it has
        bytes.
        """
        longest = max((len(word.encode()) for word in stop), default=0)
        if not longest:
            return [False] * len(requests)
        enders = self._tokens_that_may_end(tuple(stop))
        # A token past the vocabulary has no text. It makes the answer invalid, see `_answer`.
        known = range(self._engine.vocab_size)
        stopped = [False] * len(requests)
        candidates = [
            at
            for at, request in enumerate(requests)
            if enders is None or request.tokens[-1] in enders
        ]
        ends = [
            [token for token in requests[at].tokens[-longest:] if token in known]
            for at in candidates
        ]
        for at, text in zip(candidates, self._tokenizer.decode_batch(ends), strict=True):
            stopped[at] = cut_at_stop(text, stop)[1]
        return stopped

    def _tokens_that_may_end(self, stop: tuple[str, ...]) -> frozenset[int] | None:
        """The tokens with the last character of a stop string in their text; None if any token may
        complete one.

        Most tokens have none, and decoding 256 texts after each step costs more than the scheduler.
        Any token may complete a character of several bytes, or a blank: some tokenizers drop blanks
        from the text of one token.
        """
        if stop not in self._enders:
            last = {word[-1] for word in stop if word}
            tokens = range(self._engine.vocab_size)
            texts = self._tokenizer.decode_batch([[token] for token in tokens])
            self._enders[stop] = (
                frozenset(
                    token for token, text in zip(tokens, texts, strict=True) if last & set(text)
                )
                if all(char.isascii() and not char.isspace() for char in last)
                else None
            )
        return self._enders[stop]

    def _answer(self, request: _Request, finish: str, stop: Sequence[str]) -> Answer:
        tokens = request.tokens
        inside = [token for token in tokens if 0 <= token < self._engine.vocab_size]
        text, _ = cut_at_stop(str(self._tokenizer.decode(inside)), stop)
        invalid = not request.finite or len(inside) < len(tokens) or has_invalid_text(text, finish)
        return Answer(text, finish, len(tokens), invalid)


def open_model(where: str, **options: Any) -> ReferenceBackend:
    """Start the reference engine on a checkpoint, or on a canary of the harness by its name."""
    shipped = FIXTURES / Path(where).name
    is_shipped = not Path(where).exists() and (shipped / "config.json").is_file()
    return open_engine(str(shipped) if is_shipped else where, **options)


def open_engine(
    directory: str,
    *,
    concurrency: int = 32,
    poison: Poison = AS_IT_IS,
    max_model_len: int | None = None,
    device: str = "cpu",
    **options: Any,
) -> ReferenceBackend:
    """Start the reference engine on a checkpoint, on "cpu" or "cuda"; there it runs the CUDA twins
    of kernels.

    `options` are fields of `EngineParams` (`kv`, `graph`, `capture`, `num_blocks`, kernels, ...).
    Raises InputError if `directory` is no checkpoint of an MLA model, or an option is wrong.
    """
    card = describe_directory(Path(directory))
    try:
        config = checkpoint.load_config(directory)
        tokenizer = tokenizers.Tokenizer.from_file(
            str(_required(Path(directory) / "tokenizer.json"))
        )
        model = checkpoint.load(directory, torch.float32).to(_available(device))
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"--model engine:{directory}: {error}") from None
    length = max_model_len or min(config.max_position_embeddings, _MAX_MODEL_LEN)
    # A prompt costs a GPU little. With many at once, decoding requests wait for few such steps.
    prompts = {"max_batched_tokens": 4096} if device == "cuda" else {}
    params = engine_params(config, concurrency, length, prompts | options)
    if device == "cuda":
        named = {field: f"{op}/{getattr(params, field)}" for field, op in ENGINE_KERNELS.items()}
        params = params.but(**cuda_twins(named))
    engine = ReferenceEngine(model, params, poison, length)
    if device == "cuda" and params.graph == "full":
        # If prompts start together, graphs run the steps in between.
        engine.scheduler.least_admitted = max(1, concurrency // PROMPTS_TOGETHER)
    identity = Identity(
        model=card.name,
        engine="engine" if device == "cpu" else f"engine on {device}",
        dtype=f"float32, kv {params.kv}",
        model_hash=card.hash,
        deterministic=True,
        note=card.note,
    )
    return ReferenceBackend(
        ServedEngine(engine, config.vocab_size, config.eos_token_id), tokenizer, identity
    )


def engine_params(
    config: EngineModelConfig, concurrency: int, max_model_len: int, options: dict[str, Any]
) -> EngineParams:
    """The engine's parameters: sizes of the checkpoint, room for `concurrency` requests, and the
    user's options.
    """
    # One request of full length must fit, and all requests of usual length. The first two blocks
    # are reserved.
    per_request = num_pages(_TYPICAL_TOKENS) + int(config.is_hybrid)
    num_blocks = 2 + max(
        concurrency * per_request, num_pages(max_model_len) + int(config.is_hybrid)
    )
    given = {
        **{name: getattr(config, name) for name in _SIZES},
        "layers": config.layer_types,
        "vocab_size": config.vocab_size,
        "kv": "fp32",
        "num_blocks": num_blocks,
        "max_num_seqs": concurrency,
        "max_batched_tokens": 512,
        # Powers of two up to the first that holds every request.
        "capture_sizes": tuple(1 << power for power in range((concurrency - 1).bit_length() + 1)),
        # Requests come one by one, of any length.
        "requests": ((1, 1),),
    }
    try:
        return EngineParams.model_validate(given | options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"engine option {where}: {first['msg']}" if where else f"engine: {first['msg']}"
        ) from None


def _available(device: str) -> str:
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device {device}: the engine runs on cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device on this machine; leave the option out")
    return device


def _required(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing")
    return path
