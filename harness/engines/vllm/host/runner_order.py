"""The order that vLLM's two model runners give the requests of a step, made by their own code.

The first runner reorders its batch in place by a function of its own. The second sorts in the middle of a method that
needs a GPU: the sort and what leads to it are executed from that method's own text, so that a release which sorts
otherwise is judged by what it does. Where the text has no such sort, or the sort asks for more than stands in here, it
is refused: nothing was judged.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from harness.core.errors import InputError

ORDERED = "req_ids"
COUNTS = "num_tokens_per_req"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a step: how many tokens its prompt has, and how many were computed before and are now."""

    name: str
    num_prompt: int
    num_computed: int
    num_scheduled: int

    @property
    def num_tokens(self) -> int:
        """Tokens in the cache after the step."""
        return self.num_computed + self.num_scheduled


def first_runner(
    reorder: Callable[..., Any], requests: Sequence[Request], *, decode_threshold: int
) -> tuple[Request, ...]:
    """The batch as `reorder`, the first runner's `reorder_batch_to_split_decodes_and_prefills`, leaves it."""
    batch = _InputBatch(requests)
    reorder(batch, _scheduled(requests), decode_threshold=decode_threshold)
    return _named(requests, batch.req_ids)


def second_runner(runner: type, requests: Sequence[Request]) -> tuple[Request, ...]:
    """The batch in the order of `runner`, the second runner's class. Raises InputError where that cannot be told."""
    method, index = _sort_of(runner)
    given = {
        "self": _runner_state(requests),
        "scheduler_output": _scheduled(requests),
    }
    asked = [argument.arg for argument in method.args.args]
    function = _cut(runner, method, index)
    try:
        # An argument that nothing stands in for is None, and refused where the sort asks for something of it.
        ordered = list(function(**{name: given.get(name) for name in asked}))
    except (AttributeError, KeyError, NameError, TypeError) as error:
        raise _refusal(runner, f"the sort of {method.name} asks for more than stands in here ({error})") from None
    if sorted(ordered) != sorted(request.name for request in requests):
        raise _refusal(runner, f"the sort of {method.name} gives {ordered}, which are not the requests of the step")
    return _named(requests, ordered)


class _InputBatch:
    """Of the first runner's `InputBatch`, what the reordering reads and swaps."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.req_ids = [request.name for request in requests]
        self.num_computed_tokens_cpu = _counts(request.num_computed for request in requests)
        self.num_prompt_tokens = _counts(request.num_prompt for request in requests)

    def swap_states(self, i: int, j: int) -> None:
        """Exchange two requests."""
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for counts in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
            counts[[i, j]] = counts[[j, i]]


def _counts(values: Any) -> Any:
    return torch.tensor(list(values), dtype=torch.int32).numpy()


def _named(requests: Sequence[Request], names: Sequence[str]) -> tuple[Request, ...]:
    known = {request.name: request for request in requests}
    return tuple(known[name] for name in names)


def _scheduled(requests: Sequence[Request]) -> Any:
    """Of the scheduler's output, what an order can depend on."""
    old = [request for request in requests if request.num_computed]
    cached = SimpleNamespace(req_ids=[r.name for r in old], num_computed_tokens=[r.num_computed for r in old])
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(request.num_scheduled for request in requests),
        num_scheduled_tokens={request.name: request.num_scheduled for request in requests},
        scheduled_spec_decode_tokens={},
        scheduled_new_reqs=[
            SimpleNamespace(req_id=request.name, num_computed_tokens=0) for request in requests if request not in old
        ],
        scheduled_cached_reqs=cached,
    )


def _runner_state(requests: Sequence[Request]) -> Any:
    """Of the second runner, what an order can depend on: no drafts, and each request's progress."""
    computed, prompts = (
        _counts(getattr(request, name) for request in requests) for name in ("num_computed", "num_prompt")
    )
    states = SimpleNamespace(
        req_id_to_index={request.name: index for index, request in enumerate(requests)},
        num_computed_tokens_np=computed,
        num_computed_prefill_tokens=computed.clip(max=prompts),
        prefill_len=SimpleNamespace(np=prompts),
        prompt_len=SimpleNamespace(np=prompts),
    )
    return SimpleNamespace(decode_query_len=1, req_states=states)


def _sort_of(runner: type) -> tuple[ast.FunctionDef, int]:
    """The one method that sorts the requests by their tokens, and which of its statements does."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(runner))).body
    assert isinstance(tree, ast.ClassDef)
    methods = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    places = [(method, i) for method in methods for i, line in enumerate(method.body) if _sorts(line)]
    if len(places) != 1:
        found = "no method sorts" if not places else f"{len(places)} statements sort"
        raise _refusal(runner, f"{found} the requests into `{ORDERED}` by `{COUNTS}`")
    return places[0]


def _sorts(line: ast.stmt) -> bool:
    """Is it `req_ids = sorted(num_tokens_per_req, ...)`, or a function of vLLM's that is named for sorting?"""
    if not isinstance(line, ast.Assign) or not isinstance(line.value, ast.Call):
        return False
    by, arguments = line.value.func, line.value.args
    return (
        [ast.unparse(target) for target in line.targets] == [ORDERED]
        and isinstance(by, ast.Name)
        and by.id.startswith("sort")
        and bool(arguments)
        and ast.unparse(arguments[0]) == COUNTS
    )


def _cut(runner: type, method: ast.FunctionDef, index: int) -> Callable[..., Any]:
    """The sort and the statements that lead to what it reads, as a function that returns the order."""
    [back] = ast.parse(f"return {ORDERED}").body
    own = _names(method, ast.Store)
    kept, read = [method.body[index], back], _names(method.body[index]) & own
    for line in reversed(method.body[:index]):
        # Only an assignment to other names is left out for sure: anything else that names one of these may change it.
        if (_assigned(line) or _names(line)) & read:
            kept.insert(0, line)
            read |= _names(line) & own
    method.body, method.decorator_list, method.returns = kept, [], None
    for argument in method.args.args:
        argument.annotation = None
    where = f"<{runner.__module__}.{runner.__qualname__}.{method.name}, its sort>"
    code = compile(ast.fix_missing_locations(ast.Module([method], [])), where, "exec")
    scope: dict[str, Any] = {}
    exec(code, inspect.unwrap(runner.__dict__[method.name]).__globals__, scope)
    made: Callable[..., Any] = scope[method.name]
    return made


def _assigned(line: ast.stmt) -> set[str]:
    """The names that a plain assignment binds; none for any other statement, which may do more."""
    targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _names(node: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and isinstance(found.ctx, context)}


def _refusal(runner: type, why: str) -> InputError:
    return InputError(f"{runner.__module__}:{runner.__qualname__} is not what this part was written for: {why}")
