"""`mla-harness serve-check URL --script NAME`: check how a running server keeps its state, by a
script of requests.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.accuracy.script_check import ORACLE, SCENARIO, TOLERANCE, ScriptCheck
from harness.accuracy.server_dialects import MOST_PAGE
from harness.cli import run_and_report
from harness.cli.option_records import LeavingRuns, with_options
from harness.cli.output import console, print_json
from harness.cli.shared_options import ServedModel, command_line
from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.files import write_atomic
from harness.core.model_params import ModelParams
from harness.core.records import CaseResult, Verdict
from harness.diagnose.traces import TraceCheck
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.wording import printable
from harness.report.write import write_reports
from harness.run.child import ask
from harness.run.scripts import load_script
from harness.store.run_folder import RunStore


@dataclass(frozen=True, kw_only=True)
class ServeCheckOptions(LeavingRuns):
    """Options of `mla-harness serve-check`."""

    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="An OpenAI-compatible server, such as http://host:8000/v1."
        ),
    ]
    served_model: ServedModel = None
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Time limit of one answer.")
    ] = 120.0
    script: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Take the steps of a script: abort, cache-reuse, lengths, ...; or FILE.yaml.",
        ),
    ] = None
    fuzz: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="In place of a script: N drawn traces of requests in time."
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --fuzz: the seed of the traces.")
    ] = 0
    shrink_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="With --fuzz: time for shrinking a trace that fails."
        ),
    ] = 60.0
    tolerance: Annotated[
        float, typer.Option(metavar="NATS", min=0, help="Allowed change of a log probability.")
    ] = TOLERANCE
    page_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=MOST_PAGE, help="Tokens of a page, of a server without pages."
        ),
    ] = None
    least_acceptance: Annotated[
        float | None,
        typer.Option(metavar="SHARE", min=0, max=1, help="Least share of accepted drafts."),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="With --script reload: the checkpoint to load."),
    ] = None
    against: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --weights: a server that was started with them."),
    ] = None


@with_options(ServeCheckOptions)
def serve_check(context: typer.Context, given: ServeCheckOptions) -> None:
    """Check how a running server keeps its state, by a script of requests.

    Scripts: cache-reuse, preempt, abort, lengths, sleep, reload, or a file. Each answer must have
    the tokens of the same request asked alone and uncached, and the server's counters must show
    that what the script is for (a hit, a preemption, ...) did happen. With --fuzz the requests are
    drawn; the first trace that fails is shrunk, and left in the run's folder as trace.yaml, for
    --script, and as trace.py, which needs httpx alone. Needs no access to the server's process. A
    key is read from the environment variable OPENAI_API_KEY. Exit code 0 if all is well, 1 if not,
    2 if the script could show nothing.
    """
    request = _request(asdict(given))
    started = time.monotonic()
    # Drawn traces say themselves how far they are.
    waiting = (
        nullcontext()
        if given.fuzz
        else Waiting(console(as_json=True), f"taking the steps of {given.script}")
    )
    with waiting:
        answer = ask(
            "harness.diagnose.traces", request, name="the process that asks", on_progress=_say
        )
    result = CaseResult.model_validate(answer["result"])
    if not given.json:
        # First, because a full disk must not lose it.
        print(*map(printable, answer["lines"]), sep="\n")
    store = _created(result, request, given.root)
    # Before its result: a run with results goes on with the code that it began with.
    store.note_source(run_and_report.source_under_test(given.commit, given.branch))
    seconds = time.monotonic() - started
    store.add(result.but(seconds=round(seconds, 3)))
    store.add_seconds(seconds)
    write_reports(RunView(store))
    script = answer["found"].get("python", "")
    if script:
        write_atomic(store.path / "trace.py", script)
        # JSON is YAML too.
        write_atomic(store.path / "trace.yaml", json.dumps(answer["found"]["trace"], indent=1))
    if given.json:
        print_json(answer["found"] | {"directory": str(store.path)})
    else:
        print(f"report: {store.path / 'report.html'}")
        print(f"\n{printable(str(store.path / 'trace.py'))}:\n\n{script}" if script else "", end="")
    raise typer.Exit({Verdict.PASS: 0, Verdict.SKIP: 2}.get(result.verdict, 1))


def _say(progress: dict[str, Any]) -> None:
    print(progress["words"], file=sys.stderr, flush=True)


def _request(given: dict[str, Any]) -> ScriptCheck:
    """What the options ask for. Raises InputError for options that need others."""
    if given["fuzz"]:
        if given["script"] or given["weights"] or given["against"]:
            raise InputError(
                "--fuzz: draws its requests; leave out --script, --weights and --against"
            )
        return TraceCheck(
            **{name: given[name] for name in TraceCheck.model_fields if name != "script"}
        )
    if given["script"] is None:
        questions = (
            f"mla-harness epochs --task gsm_symbolic --model server:{given['url']} --epochs 3"
            " --repeat 16"
        )
        raise InputError(
            "serve-check: --script NAME is missing, or --fuzz N; to ask questions, use"
            f" `{questions}`"
        )
    if given["against"] and not given["weights"]:
        raise InputError("--against: names a server with the weights of --weights; add --weights")
    script = load_script(given["script"])
    return ScriptCheck(
        **{name: given[name] for name in ScriptCheck.model_fields} | {"script": script}
    )


def _created(result: CaseResult, request: ScriptCheck, root: Path) -> RunStore:
    given = request.model_dump(exclude_defaults=True) | {"script": request.script.name}
    named = {name: value for name, value in given.items() if name in ModelParams.model_fields}
    params = ModelParams(model=f"server:{given['url']}", task=request.script.name, **named)
    case = Case(id=result.id, scenario=SCENARIO, system="model", params=params, oracles=(ORACLE,))
    job = Job(key=result.key, case=case)
    return RunStore.create(root, [job], command=command_line(), options={SCENARIO: given})
