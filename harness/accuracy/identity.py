"""The identity of a checkpoint: a hash of its configuration, weights and tokenizer, and a note for reports."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import InputError

CANARY_NOTE = "a canary: it measures inference, not ability"
_HASHED = ("config.json", "*.safetensors", "tokenizer.json")
_BLOCK = 1 << 20
_WHOLE_UP_TO = 1 << 30


@dataclass(frozen=True)
class Description:
    """A checkpoint directory: its name, its hash, the dtype of its weights, and a note that reports must show."""

    name: str
    hash: str
    dtype: str
    note: str


def describe_directory(directory: Path) -> Description:
    """Describe a Hugging Face directory. Raises InputError for another directory."""
    config_file = directory / "config.json"
    if not config_file.is_file():
        raise InputError(f"{directory}: no config.json there; name a Hugging Face model directory")
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{config_file}: not JSON ({error})") from None
    card = directory / "README.md"
    is_canary = card.is_file() and "measures inference, not ability" in card.read_text(encoding="utf-8")
    return Description(
        name=directory.resolve().name,
        hash=hash_directory(directory),
        dtype=str(config.get("torch_dtype") or config.get("dtype") or "unknown"),
        note=CANARY_NOTE if is_canary else "",
    )


def hash_directory(directory: Path) -> str:
    """``sha256:`` and 16 hex digits over the names and bytes of configuration, weights and tokenizer.

    A file over 1 GiB counts by its size and its first and last MiB, so that a checkpoint of 600 GB needs a second.
    """
    digest = hashlib.sha256()
    files = sorted({path for pattern in _HASHED for path in directory.glob(pattern)})
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as stream:
            if path.stat().st_size > _WHOLE_UP_TO:
                digest.update(stream.read(_BLOCK))
                stream.seek(-_BLOCK, os.SEEK_END)
            while block := stream.read(_BLOCK):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"
