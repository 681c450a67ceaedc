"""People's own kernels: registered when they fit their op, refused in one line when they do not."""

from __future__ import annotations

import subprocess
import sys
import uuid
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from harness import kernel
from harness.core.catalog import KERNELS
from harness.core.errors import InputError, UnknownNameError
from harness.kernels import plugins
from tests.transcripts import Approved

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kernels"


def write(folder: Path, text: str) -> Path:
    file = folder / f"plugin_{uuid.uuid4().hex}.py"
    file.write_text(text)
    return file


def test_a_decorated_function_is_registered_with_its_promises_and_stays_itself() -> None:
    @kernel(op="quantize_fp8", name="mine", devices=["cpu", "cuda"], kv=["bf16"])
    def mine(x: object, *, num_live: object = None) -> object:
        """Does something.

        And more.
        """
        return x

    spec = KERNELS.get("quantize_fp8/mine")
    assert spec.load() is mine
    assert (spec.devices, spec.kv, spec.summary) == (("cpu", "cuda"), ("bf16",), "Does something.")
    assert spec.origin == __file__


def test_a_function_that_the_harness_cannot_call_is_refused_with_what_is_missing(
    approved: Approved,
) -> None:
    for function in (
        lambda x: x,
        lambda x, num: x,
        lambda *, num_live: num_live,
        lambda x, extra, *, num_live=None: x,
        lambda x, *, num_live=None, must: x,
    ):
        with approved.raises(InputError) as refused:
            kernel(op="quantize_fp8", name="mine")(function)  # type: ignore[type-var]
        assert "\n" not in str(refused.value)
        assert "quantize_fp8/mine" not in KERNELS


@pytest.mark.parametrize(
    "function",
    [lambda *args, **kwargs: args, lambda anything, num_live: anything, lambda x, **options: x],
)
def test_names_of_positional_arguments_are_free(function: object) -> None:
    kernel(op="quantize_fp8", name="mine")(function)  # type: ignore[type-var]
    assert "quantize_fp8/mine" in KERNELS


def test_promises_that_nobody_knows_are_refused(approved: Approved) -> None:
    for arguments in [
        {"op": "mla_decod", "name": "mine"},
        {"op": "mla_decode"},
        {"op": "mla_decode", "name": "a/b"},
        {"op": "mla_decode", "name": "a b[c]=,"},
        {"op": "mla_decode", "name": "mine", "empty_rows": "zero"},
        {"op": "mla_decode", "name": "mine", "empty_lse": "0"},
        {"op": "mla_decode", "name": "mine", "checks": "all"},
        {"op": "mla_decode", "name": "mine", "gives_lse": "no"},
        {"op": "mla_decode", "name": "mine", "capturable": 0},
        {"op": "write_kv", "name": "mine", "gives_lse": False},
        {"op": "mla_decode", "name": "mine", "gives_lse": False, "empty_lse": "-inf"},
        {"op": "mla_decode", "name": "mine", "fp8_products": "e4m3"},
        {"op": "mla_decode", "name": "mine", "bf16_steps": ("sum",)},
        {"op": "mla_decode", "name": "mine", "bf16_steps": "sums"},
        {"op": "mla_decode", "name": "mine", "kv": ["int8"]},
        {"op": "mla_decode", "name": "mine", "kv": "bf16"},
        {"op": "mla_decode", "name": "mine", "devices": "cpu"},
        {"op": "mla_decode", "name": "mine", "devices": ()},
        {"op": "mla_decode", "name": "mine", "devices": ("gpu",)},
    ]:
        with approved.raises(InputError, str(arguments)):
            kernel(**arguments)  # type: ignore[arg-type]


def test_a_promise_that_nobody_knows_is_answered_with_all_that_there_are(
    approved: Approved,
) -> None:
    for word in [
        "gives_lsee",
        "xyz",
    ]:
        unknown: dict[str, Any] = {word: True}
        with approved.raises(InputError) as refused:
            kernel(op="mla_decode", name="mine", **unknown)
        words = str(refused.value).partition("it takes ")[2].split(", ")
        assert {
            "op",
            "name",
            "devices",
            "kv",
            "shapes",
            "gives_lse",
            "checks",
            "bf16_steps",
        } <= set(words)
        assert not {"unknown", "positional"} & set(words)


def test_op_and_name_are_given_by_keyword(approved: Approved) -> None:
    for misplaced in ("mla_decode", len):
        with approved.raises(InputError):
            kernel(misplaced)


def test_sizes_are_numbers_and_layouts_are_names(approved: Approved) -> None:
    for shapes in [
        {"num_heads": "16"},
        {"page_size": [64, "16"]},
        {"layout": "16"},
        "16",
    ]:
        with approved.raises(InputError, str(shapes)):
            plugins.declared_shapes("mine", shapes)


def test_promises_may_be_given_by_a_generator() -> None:
    kernel(op="quantize_fp8", name="mine", kv=(kv for kv in ("bf16",)))(
        lambda x, *, num_live=None: x
    )
    assert KERNELS.get("quantize_fp8/mine").kv == ("bf16",)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match="registered already"):
        kernel(op="quantize_fp8", name="per-token")(lambda x, *, num_live=None: x)


def test_a_plugin_file_is_executed_once_and_tells_what_it_registered() -> None:
    first = plugins.load_plugins([FIXTURES / "correct.py", FIXTURES / "zeros.py"])
    assert [spec.name for spec in first] == ["mla_decode/correct", "mla_decode/zeros"]
    assert plugins.load_plugins([FIXTURES / "correct.py", FIXTURES / "zeros.py"]) == first
    assert first[0].empty_rows == "identity" and first[0].origin == str(FIXTURES / "correct.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\nraise RuntimeError('no GPU\\nhere')\n", r":2: RuntimeError: no GPU here"),
        ("def (:\n", r":1: SyntaxError"),
        ("import sys\n\nsys.exit(3)\n", r":3: SystemExit: 3"),
        ("import nothing_of_this_name\n", r":1: ModuleNotFoundError"),
        ("from mla_harness import nothing\n", r":1: ImportError"),
        ("print('hello')\n", r"registers no kernel"),
        (
            "from harness import kernel\n\n@kernel(op='write_kv', name='w')\ndef w(a): ...\n",
            r":3: .*kv_scale",
        ),
        (
            (
                "from harness import kernel\n\n@kernel(op='write_kv', name='w', devices='cpu')\ndef"
                " w(a): ...\n"
            ),
            r":3: .*tuple",
        ),
    ],
)
def test_a_plugin_file_that_does_not_load_is_refused_with_its_line_each_time(
    tmp_path: Path, text: str, says: str
) -> None:
    file = write(tmp_path, text)
    for _ in range(2):
        with pytest.raises(InputError, match=says) as refused:
            plugins.load_plugin(file)
        assert str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_does_not_exist_or_is_not_python_is_refused(
    tmp_path: Path, approved: Approved
) -> None:
    with pytest.raises(InputError, match="no such file"):
        plugins.load_plugin(tmp_path / "absent.py")
    (tmp_path / "kernel.txt").write_text("")
    with approved.raises(InputError):
        plugins.load_plugin(tmp_path / "kernel.txt")


def entry_point(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> list[str]:
    """Install one entry point whose module holds `text`; returns the groups that are asked for from
    now on.
    """
    file = write(folder, text)
    monkeypatch.syspath_prepend(str(folder))
    asked: list[str] = []

    def points(*, group: str) -> EntryPoints:
        asked.append(group)
        return EntryPoints([EntryPoint("mine", file.stem, group)])

    monkeypatch.setattr(plugins, "entry_points", points)
    return asked


def test_entry_points_are_imported_only_for_a_name_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, approved: Approved
) -> None:
    text = (
        "from harness import kernel\n\n@kernel(op='quantize_fp8', name='ep')\ndef f(x, *,"
        " num_live=None): ...\n"
    )
    asked = entry_point(monkeypatch, tmp_path, text)
    assert plugins.find_kernel("quantize_fp8", "torch").short_name == "torch"
    assert asked == []
    assert plugins.find_kernel("quantize_fp8", "ep").short_name == "ep"
    assert asked == ["mla_harness.kernels"]
    with approved.raises(UnknownNameError):
        plugins.find_kernel("quantize_fp8", "torc")


def test_an_entry_point_that_does_not_import_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry_point(monkeypatch, tmp_path, "raise OSError('gone')\n")
    with pytest.raises(InputError, match=r"'mine' of .*: OSError: gone"):
        plugins.find_kernel("quantize_fp8", "absent")


def test_importing_the_package_or_the_decorator_imports_no_torch() -> None:
    code = (
        "import sys, harness\nassert not {'torch', 'pydantic'} & set(sys.modules), 'import"
        " harness'\nassert harness.__version__ and callable(harness.kernel) and"
        " harness.Finding\nassert 'torch' not in sys.modules, 'from harness import kernel'\ntry:\n "
        "   harness.absent\nexcept AttributeError as error:\n    assert 'absent' in str(error)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
