"""The values of `--with`: the name of a built-in cure, or a plug-in file. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.core.catalog import FAULTS, SITES
from harness.core.errors import InputError
from harness.core.ops import OPS
from harness.core.registry import LIST, nearest

LOGITS = "logits"
"""The output of the model; all others are outputs of ops."""

FORMS = "zero:SITE, nan_to_num:OP.OUTPUT, nan_to_num:logits, fix:FAULT or the path of a Python file with @cure"


@dataclass(frozen=True, slots=True)
class CureName:
    """One proposed cure. `kind` is zero, nan_to_num, fix or file."""

    kind: str
    what: str

    @property
    def text(self) -> str:
        """As `--with` takes it."""
        return self.what if self.kind == "file" else f"{self.kind}:{self.what}"


def parse(text: str) -> CureName:
    """The cure that `text` names. Raises InputError with the known forms or the nearest name."""
    kind, colon, what = text.partition(":")
    if not colon or kind not in _KNOWN:
        if text.endswith(".py"):
            path = Path(text).resolve()
            if not path.is_file():
                raise InputError(f"--with {text}: there is no such file; give {FORMS}")
            return CureName("file", str(path))
        raise InputError(f"--with {text}: unknown cure; give {FORMS}")
    known = _KNOWN[kind]()
    if what not in known:
        hint = nearest(what, known, see="" if kind == "nan_to_num" else LIST)
        raise InputError(f"--with {text}: unknown name {what!r}; {hint}")
    return CureName(kind, what)


def filled_sites(cures: tuple[str, ...]) -> tuple[str, ...]:
    """The sites that `cures` fill with zeros."""
    return tuple(name.what for name in map(parse, cures) if name.kind == "zero")


def outputs() -> list[str]:
    """`OP.OUTPUT` for each output that is a tensor of numbers, and `logits`."""
    return [LOGITS, *(f"{op.name}.{output.name}" for op in OPS for output in op.outputs if output.shape)]


_KNOWN = {"zero": SITES.names, "nan_to_num": outputs, "fix": FAULTS.names}
