"""What an engine must bring, and the checks that engines share.

An engine is a package with a module of tables, such as those in `adapters/`. An entry point of the
group `mla_harness.engines` names the module, in the `pyproject.toml` of whoever brings the engine:
this project's or any other's (see `examples/engine-from-outside`). All that it needs of the harness
stands in `harness.api`. The module imports neither torch nor the engine. It has:

- `ENGINE`, an `EngineSpec`: its name (the entry point's), title, distribution and package.

The other tables are optional. A table names code as "module:name", and a module named so imports
the engine inside its functions, because the engine may not be installed.

- `SYSTEMS`: a `SystemSpec` for each kind of case. It names a `Params` model and a `Target`. The
  `why_not` of the target returns why a case cannot run here, beginning with
  `why_not_installed(ENGINE)`. `run(poison)` runs the engine, usually in a `Child`, and returns a
  `Run` for the oracles.
  `injects_faults` means that the target injects faults itself. A system with `records_first_nan`
  has a target with `first_writer`.
  The target of an engine in processes of its own is a `served_target.ServedTarget`. It says what
  differs from other engines, as data: the memory that its processes fill, the errors with which it
  checks its options, and what some releases or GPUs do not serve. Plan, report and refusals are
  shared. All differences between releases of an engine stand in its file `releases.py`.
- `FAULTS`: a `FaultSpec` for each known bug of the engine, named "ENGINE.bug". Its target injects
  it with a `mla_harness_adapters.patches.Patch` for each range of releases. A fault with a
  `target` and a `replacement` is injected in the worker: the target is a function of the engine
  that is marked with `@seam("ENGINE.bug")`.
- `KERNELS`: a `KernelSpec` for each kernel, named "ENGINE-variant", with `origin` the engine's
  name. It takes the op's arguments in `harness.core.ops`; its `requires` returns why it cannot run
  here, from `why_no_kernels`.
- `MODELS`: a `ModelSpec` for `epochs --model NAME:WHERE`, with a function that returns a
  backend: an object with `identity`, `generate` and `close`, as `backend.EngineBackend` has them.
- `SITES`, `ORACLES`: memory to poison and checks of results that only this engine has. An
  `OracleSpec` reads the records in `Run.evidence`, those of `harness.evidence` or of its own.

Systems are named "ENGINE" or "ENGINE-part". Where the tables do not load, these names tell which
engine is missed: its cases are skipped. Scenarios then name the systems, kernels and faults.
`tests/architecture` checks that the tables of this project import no torch; a test of the engine
checks that its kernels load without it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Container

import torch

from harness.api import Code, EngineSpec, WhyNot
from mla_harness_adapters.releases import Releases


def installed_version(engine: EngineSpec) -> str | None:
    """The version to import, "unknown" if the package states none, or None without the package.

    Imports nothing.
    """
    spec = importlib.util.find_spec(engine.package)
    # A folder that an uninstall left has no origin.
    return engine.version() or "unknown" if spec and spec.origin else None


def why_not_installed(engine: EngineSpec) -> WhyNot | None:
    """Why the engine cannot be imported here, with the command that installs it; None if it
    can.
    """
    if installed_version(engine) is not None:
        return None
    how = f"pip install {engine.install or engine.distribution}"
    return WhyNot(f"{engine.title} is not installed ({how})", Code.NOT_INSTALLED, engine.title, how)


def why_no_kernels(
    engine: EngineSpec, device: str, majors: Container[int] | None = None, words: str = ""
) -> WhyNot | None:
    """Why no CUDA kernel of the engine runs on `device` here; None if no reason is known.

    `majors` and `words` as in `why_not_built`, for kernels that are not built for every CUDA
    device.
    """
    if device != "cuda":
        return WhyNot(f"{engine.title}'s kernels run on cuda, not on {device}", Code.NO_DEVICE)
    if reason := why_not_installed(engine):
        return reason
    if not torch.cuda.is_available():
        return WhyNot.no_gpu()
    return None if majors is None else why_not_built(majors, words)


def why_too_old(engine: EngineSpec, oldest: str, says: str) -> WhyNot | None:
    """Why the installed release of the engine is too old; None if it is not, or states no version.

    `oldest` is the first release that is not. `says` completes the sentence behind its number.
    """
    found = str(installed_version(engine))
    if found == "unknown" or found in Releases(first=oldest):
        return None
    return WhyNot(f"{engine.title} {found} is older than {oldest}, {says}")


def why_not_built(majors: Container[int], words: str) -> WhyNot | None:
    """Why a kernel built for these major compute capabilities, called `words`, does not run here;
    None if it does.

    Needs a CUDA device.
    """
    major, minor = torch.cuda.get_device_capability()
    return (
        None
        if major in majors
        else WhyNot(
            f"built for {words}; this GPU is {major}.{minor}", Code.NO_DEVICE, f"a GPU of {words}"
        )
    )
