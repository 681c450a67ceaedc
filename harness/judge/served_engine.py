"""The reference engine on a checkpoint, as what `EngineBackend` feeds. The one module of this package with torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from tokenizers import Tokenizer

from harness.accuracy.backends import Identity
from harness.accuracy.identity import describe_directory
from harness.core.engine_params import ENGINE_KERNELS, EngineParams
from harness.core.errors import InputError
from harness.core.fixtures import FIXTURES
from harness.engine.engine import Engine
from harness.engine.model import checkpoint
from harness.engine.schedule.config import PAGE_SIZE, num_pages
from harness.engine.schedule.model_config import ModelConfig
from harness.engine.schedule.sequence import Sequence as EngineSequence
from harness.judge.engine_backend import EngineBackend, NewToken
from harness.memory.poison.patterns import NATURAL, Poison
from harness.scenario.device import cuda_twins

AS_IT_IS = Poison(NATURAL, frozenset())
"""What a measurement of accuracy wants: memory keeps what its last owner left, as in production."""

PROMPTS_TOGETHER = 4
"""On a GPU with graphs, prompts start when this fraction (one in so many) of the places is free."""

_MAX_MODEL_LEN = 2048
_TYPICAL_TOKENS = 4 * PAGE_SIZE


class ServedEngine:
    """An `Engine` asked through request numbers: it says which tokens each step gave, and forgets their logits."""

    def __init__(self, engine: Engine, vocab_size: int, eos_token_id: int) -> None:
        self.engine = engine
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self._live: dict[int, EngineSequence] = {}

    @property
    def max_length(self) -> int:
        """Bounded by the block table's width and by what the pool can give one request."""
        state = int(self.engine.scheduler.needs_state)
        return min(self.engine.max_model_len, (self.engine.pool.num_usable_blocks - state) * PAGE_SIZE)

    def add(self, tokens: Sequence[int], max_tokens: int) -> int:
        """Queue a request; returns its number."""
        sequence = self.engine.add_request(list(tokens), max_tokens)
        self._live[sequence.request] = sequence
        return sequence.request

    def step(self) -> list[NewToken]:
        """One step; a request whose prompt is not done yet gives no token."""
        self.engine.step()
        newest = self.engine.observations.newest
        assert newest is not None
        finite = newest.logits.isfinite().all(dim=-1).tolist()
        return [
            NewToken(request, self._live[request].tokens[-1], is_finite)
            for request, is_finite in zip(newest.requests, finite, strict=True)
            if request in self._live
        ]

    def finish(self, request: int) -> None:
        """End a request wherever it is: running, waiting, or finished by its own limit."""
        sequence = self._live.pop(request)
        scheduler = self.engine.scheduler
        if sequence in scheduler.running:
            scheduler.finish(sequence)
        elif sequence in scheduler.waiting:
            scheduler.waiting.remove(sequence)


def open_model(where: str, **options: Any) -> EngineBackend:
    """Start the reference engine on a checkpoint, or on a canary that ships with the harness, found by its name."""
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
) -> EngineBackend:
    """Start the reference engine on a checkpoint, on "cpu" or on "cuda" with the kernels' twins there.

    `options` are fields of `EngineParams` (`kv`, `graph`, `capture`, `num_blocks`, kernels, ...). Raises InputError
    when `directory` is no checkpoint of an MLA model, or an option is wrong.
    """
    card = describe_directory(Path(directory))
    try:
        config = checkpoint.load_config(directory)
        tokenizer = Tokenizer.from_file(str(_required(Path(directory) / "tokenizer.json")))
        model = checkpoint.load(directory, torch.float32).to(_available(device))
    except (ValueError, FileNotFoundError) as error:
        raise InputError(f"--model engine:{directory}: {error}") from None
    length = max_model_len or min(config.max_position_embeddings, _MAX_MODEL_LEN)
    # A prompt costs a GPU little: it takes many at once, so that decoding requests wait for few such steps.
    prompts = {"max_batched_tokens": 4096} if device == "cuda" else {}
    params = engine_params(config, concurrency, length, prompts | options)
    if device == "cuda":
        named = {field: f"{op}/{getattr(params, field)}" for field, op in ENGINE_KERNELS.items()}
        params = params.model_copy(update=cuda_twins(named))
    engine = Engine(model, params, poison, length, observe=False)
    if device == "cuda" and params.graph == "full":
        # Prompts that start together leave the steps between them to the graphs.
        engine.scheduler.least_admitted = max(1, concurrency // PROMPTS_TOGETHER)
    identity = Identity(
        model=card.name,
        engine="engine" if device == "cpu" else f"engine on {device}",
        dtype=f"float32, kv {params.kv}",
        model_hash=card.hash,
        deterministic=True,
        note=card.note,
    )
    return EngineBackend(ServedEngine(engine, config.vocab_size, config.eos_token_id), tokenizer, identity)


def engine_params(config: ModelConfig, concurrency: int, max_model_len: int, options: dict[str, Any]) -> EngineParams:
    """The engine's parameters for a checkpoint: its sizes, room for `concurrency` requests, and the user's options."""
    # One request of full length must fit, and so should all requests of a usual one; the first two blocks are reserved.
    per_request = num_pages(_TYPICAL_TOKENS) + int(config.is_hybrid)
    num_blocks = 2 + max(concurrency * per_request, num_pages(max_model_len) + int(config.is_hybrid))
    given = {
        "layers": config.layer_types,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "v_head_dim": config.v_head_dim,
        "vocab_size": config.vocab_size,
        "kv": "fp32",
        "num_blocks": num_blocks,
        "max_num_seqs": concurrency,
        "max_batched_tokens": 512,
        "capture_sizes": _capture_sizes(concurrency),
        # Requests come one by one; how long they may be is the caller's business.
        "requests": ((1, 1),),
    }
    try:
        return EngineParams.model_validate(given | options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"engine option {where}: {first['msg']}" if where else f"engine: {first['msg']}") from None


def _capture_sizes(concurrency: int) -> tuple[int, ...]:
    """Powers of two up to the first that holds every request."""
    sizes = [1]
    while sizes[-1] < concurrency:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


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
