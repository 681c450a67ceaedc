"""The batch order of vLLM's two model runners, computed by their own code.

The first runner has a function that reorders its batch in place. The second runner sorts in the middle of a method that
needs a GPU. The sort and the statements that it depends on are cut from the text of that method and executed, so each
release is judged by its own sort. Code without such a sort, or with one that needs more than the stand-ins here, is
refused.
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
    """One request of a step: numbers of tokens in its prompt, computed before the step, and scheduled in the step."""

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
    """The batch order after `reorder`, which is vLLM's `reorder_batch_to_split_decodes_and_prefills`."""
    batch = _InputBatch(requests)
    reorder(batch, _scheduled(requests), decode_threshold=decode_threshold)
    return _named(requests, batch.req_ids)


def second_runner(runner: type, requests: Sequence[Request]) -> tuple[Request, ...]:
    """The batch order of `runner`, the class of the second runner. Raises InputError for code that cannot be cut."""
    method, index = _sort_of(runner)
    stand_ins = {"self": _runner_state(requests), "scheduler_output": _scheduled(requests)}
    parameters = [argument.arg for argument in method.args.args]
    function = _cut(runner, method, index)
    try:
        # Other arguments are None, so a sort that uses them raises.
        ordered = list(function(**{name: stand_ins.get(name) for name in parameters}))
    except (AttributeError, KeyError, NameError, TypeError) as error:
        raise _refusal(runner, f"the sort of {method.name} asks for more than stands in here ({error})") from None
    if sorted(ordered) != sorted(request.name for request in requests):
        raise _refusal(runner, f"the sort of {method.name} gives {ordered}, which are not the requests of the step")
    return _named(requests, ordered)


class _InputBatch:
    """Stands in for the first runner's `InputBatch`, with the columns that the reordering reads and swaps."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.req_ids = [request.name for request in requests]
        self.num_computed_tokens_cpu = _counts(request.num_computed for request in requests)
        self.num_prompt_tokens = _counts(request.num_prompt for request in requests)

    def swap_states(self, i: int, j: int) -> None:
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for counts in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
            counts[[i, j]] = counts[[j, i]]


def _counts(values: Any) -> Any:
    return torch.tensor(list(values), dtype=torch.int32).numpy()


def _named(requests: Sequence[Request], names: Sequence[str]) -> tuple[Request, ...]:
    known = {request.name: request for request in requests}
    return tuple(known[name] for name in names)


def _scheduled(requests: Sequence[Request]) -> Any:
    """The fields of the scheduler's output that an order can depend on."""
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
    """The fields of the second runner that an order can depend on: each request's progress, and no draft tokens."""
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
    """The only method that sorts the requests by their tokens, and the index of the statement."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(runner))).body
    assert isinstance(tree, ast.ClassDef)
    methods = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    places = [(method, i) for method in methods for i, line in enumerate(method.body) if _sorts(line)]
    if len(places) != 1:
        found = "no method sorts" if not places else f"{len(places)} statements sort"
        raise _refusal(runner, f"{found} the requests into `{ORDERED}` by `{COUNTS}`")
    return places[0]


def _sorts(line: ast.stmt) -> bool:
    """Whether a statement is `req_ids = sort...(num_tokens_per_req, ...)`: `sorted`, or a function of vLLM."""
    match line:
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.Call(func=ast.Name(id=function), args=[ast.Name(id=counts), *_]),
        ):
            return (target, counts) == (ORDERED, COUNTS) and function.startswith("sort")
    return False


def _cut(runner: type, method: ast.FunctionDef, index: int) -> Callable[..., Any]:
    """The sort and the statements that it depends on, as a function that returns the order."""
    [return_order] = ast.parse(f"return {ORDERED}").body
    own = _names(method, ast.Store)
    kept, read = [method.body[index], return_order], _names(method.body[index]) & own
    for line in reversed(method.body[:index]):
        # A plain assignment matters if it binds a name that is read. Any other statement may change all that it names.
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
    """The names that a plain assignment binds; none for any other statement."""
    targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _names(node: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and isinstance(found.ctx, context)}


def _refusal(runner: type, why: str) -> InputError:
    return InputError(f"{runner.__module__}:{runner.__qualname__} is not what this part was written for: {why}")
