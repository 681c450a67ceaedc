"""An installed harness has all its files, and leaves a project's own `harness` alone."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness as pip installs it, without its dependencies."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    pip += ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    done = subprocess.run([*pip, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["shared", "vllm", "sglang", "flashinfer", "transformers", "lmdeploy"]
)
def test_an_adapter_can_be_installed_alone_with_the_same_files(
    name: str, site: Path, tmp_path: Path
) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    pip += ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    subprocess.run([*pip, str(ROOT / "adapters" / name)], check=True)
    (package,) = tmp_path.glob("mla_harness_*[!o]")
    of_alone, of_whole = (
        {
            file.relative_to(folder)
            for file in (folder / package.name).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        for folder in (tmp_path, site)
    )
    assert of_alone and of_alone == of_whole


@pytest.fixture
def foreign(
    pytester: pytest.Pytester, site: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A project with a package `harness` of its own, where this harness is installed."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    pytester.makeini(
        "[pytest]\npythonpath = .\naddopts = -p no:cacheprovider -p torch_poison.pytest_plugin\n"
    )
    # Only this plug-in, whatever else is installed here.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        **{
            "harness/__init__": "import torch\nNAME = 'theirs'\n",
            "harness/rows": "import torch\ndef rows():\n    return torch.empty(4)\n",
            "tests/test_rows": """
                import torch
                import harness
                from harness.rows import rows

                def test_own_package():
                    import harness.rows as again
                    assert harness.NAME == "theirs" and again.rows is rows

                def test_reads_unwritten_memory():
                    got = rows()
                    assert not torch.equal(got, torch.full((4,), 7.0))
            """,
        }
    )
    return pytester


def test_a_wheel_finds_its_scenarios_and_canaries_from_any_folder(
    site: Path, tmp_path: Path
) -> None:
    code = (
        "import harness, sys\nfrom harness.cli.main import exit_code_of\n"
        "from harness.core.files import FIXTURES\n"
        "assert 'site' in harness.__file__ and (FIXTURES / 'canary-mla').is_dir()\n"
        "sys.exit(exit_code_of(['show', 'mixed-context']))"
    )
    path = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "mixed-context[" in done.stdout


def test_a_wheel_has_the_entry_points_and_is_typed(site: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "entry-points"
    ]
    (text,) = (path.read_text() for path in site.glob("mla_harness-*.dist-info/entry_points.txt"))
    for group, points in declared.items():
        for name, value in points.items():
            module = value.partition(":")[0]
            place = site.joinpath(*module.split("."))
            files = (place.with_suffix(".py"), place / "__init__.py")
            assert f"{name} = {value}" in text and any(file.is_file() for file in files)
            # Other programs import what is in their groups: from a name that no project has.
            assert group == "mla_harness.engines" or module.startswith(
                ("mla_harness_", "torch_poison.")
            )
    typed = ("harness", "torch_poison", "mla_harness_adapters", "mla_harness_vllm")
    assert all((site / name / "py.typed").is_file() for name in typed)
    assert (site / "torch_poison" / "cuda_blocks.cpp").is_file()


@pytest.mark.nightly
def test_a_project_with_a_harness_of_its_own_is_left_alone(
    foreign: pytest.Pytester, site: Path
) -> None:
    foreign.makeconftest(f"""
        import sys
        def pytest_unconfigure(config):
            found = [name for name, module in sys.modules.items()
                     if str(getattr(module, "__file__", "")).startswith({str(site)!r})]
            print("loaded:", *sorted(found))
    """)
    done = foreign.runpytest_subprocess("-s")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*loaded: torch_poison torch_poison.pytest_plugin"])


@pytest.mark.parametrize(
    "workers",
    [(), pytest.param(("-p", "xdist", "-n", "1"), marks=pytest.mark.nightly)],
    ids=["one process", "xdist"],
)
def test_poison_in_such_a_project_finds_its_bug_and_keeps_its_package(
    foreign: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    done = foreign.run(sys.executable, "-m", "pytest", *workers, "--poison", "nan")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["*harness/rows.py:3 in rows", "FAILED *::test_reads_unwritten_memory*"]
    )


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("", ""),
        ("MLA_HARNESS_POISON", "unknown site 'no-such-site'"),
        ("MLA_HARNESS_STREAMS", "invalid literal for int() with base 10: 'no-such-site:nan'"),
    ],
)
def test_vllm_s_entry_point_loads_this_harness_only_if_the_environment_asks(
    foreign: pytest.Pytester, variable: str, words: str
) -> None:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("MLA_HARNESS_")
    }
    code = "import sys, mla_harness_vllm as p; print('harness' in sys.modules); p.activate()"
    ask = {variable: "no-such-site:nan"} if variable else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ | ask, capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n"
    assert (done.returncode == 0) is (not variable) and (
        words in done.stderr if words else not done.stderr
    )


def test_a_plug_in_takes_the_decorator_from_a_name_that_no_project_has(
    foreign: pytest.Pytester,
) -> None:
    plugin = foreign.makepyfile(
        my_kernel="""
            import harness
            from mla_harness import kernel

            @kernel(op="merge_attn_states", name="mine")
            def mine(a, a_lse, b, b_lse, *, num_tokens_with_context):
                return a, a_lse

            assert harness.NAME == "theirs" and callable(mine)
            print("name:", mine.__name__)
        """
    )
    done = foreign.run(sys.executable, plugin)
    assert done.ret == 0, done.errlines
    done.stdout.fnmatch_lines(["name: mine"])


def test_the_name_that_no_project_has_offers_what_the_package_offers() -> None:
    import harness
    import mla_harness

    assert set(mla_harness.__all__) - {"judge", "own_names"} == set(harness.__all__) - {
        "__version__"
    }
    assert all(getattr(mla_harness, name) is getattr(harness, name) for name in ("kernel",))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = mla_harness.nothing


def test_a_program_judges_kernels_by_the_name_that_no_project_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mla_harness import judge

    asked = []

    def judge_kernel(*given: object, **more: object) -> None:
        asked.append((given, more))

    monkeypatch.setattr("harness.loop.judge_kernel", judge_kernel)
    judge("attempt.py:decode", op="mla_decode", seconds=5.0)
    assert asked == [(("attempt.py:decode",), {"op": "mla_decode", "seconds": 5.0})]
