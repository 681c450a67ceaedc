"""What a serving run answered: the logits of each request, and the model that gave each token."""

from __future__ import annotations

from torch import Tensor

from harness.engine.probe import Probe, Sampled
from harness.engine.schedule.sequence import Step


class Answers(Probe):
    """Logits by number of the request, and the newest step.

    `logits[r]` has one row [vocab] for each generated token, `rejected[r]` one for each rejected
    draft. `models[r]` are the models that served a request: the first token that each generates,
    how often weights were reloaded, the adapter.
    """

    def __init__(self) -> None:
        self.logits: dict[int, list[Tensor]] = {}
        self.rejected: dict[int, list[Tensor]] = {}
        self.drafted: dict[int, list[tuple[int, Tensor]]] = {}
        """Request -> the position and the logits [vocab] of each guess of a module that drafts."""
        self.verified: list[tuple[int, int, int, int, int]] = []
        """Step, request, position, draft and token of each draft of such a module that a step
        verified.
        """
        self.models: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        self.num_steps = 0
        self.newest_step = Step((), (), (), ())
        self.decided: list[str] = []
        """What each step decided, as `steps` of a case declares it."""
        self.newest_tokens: set[int] = set()
        """The requests that got a token in the newest step."""

    def before_step(self, step: Step) -> None:
        self.num_steps += 1
        self.newest_step = step
        self.decided.append(decided(step))
        for item in step.scheduled:
            models = self.models.setdefault(item.sequence.request, [])
            if not models or models[-1][1] != item.sequence.model:
                models.append((item.sequence.num_generated_tokens, item.sequence.model))

    def on_sampled(self, sampled: list[Sampled]) -> None:
        self.newest_tokens = {item.sequence.request for item in sampled if item.tokens}
        for item in sampled:
            if item.tokens:
                num_given = len(item.tokens)
                request = item.sequence.request
                self._note_drafts(item)
                self.logits.setdefault(request, []).extend(item.logits[:num_given])
                self.rejected.setdefault(request, []).extend(item.logits[num_given:])

    def _note_drafts(self, item: Sampled) -> None:
        request = item.sequence.request
        length = len(item.sequence.tokens)
        given = item.tokens
        if item.drafted is None:
            return
        # The row of position p guesses token p + 2, and the next token has number `length`.
        self.drafted.setdefault(request, []).append((length - 2, item.drafted[len(given) - 1]))
        for draft in item.drafts:
            self.verified.append(
                (self.num_steps - 1, request, length - len(given), draft, given[0])
            )


def decided(step: Step) -> str:
    """What a step decides:

    `0*3 1+64 gives 4 frees 7`, with `+` before tokens of a prompt and `*` before a decode's.
    """
    ran = (
        f"{one.sequence.request}{'+*'[one.is_decode]}{one.num_new_tokens}" for one in step.scheduled
    )
    blocks = {
        "gives": (*step.new_attention_blocks, *step.new_window_blocks, *step.new_state_blocks),
        "frees": step.freed_blocks,
        "zeroes": step.blocks_to_zero,
        "copies": [f"{source}>{target}" for source, target in step.state_copies],
    }
    return " ".join(
        [*ran, *(" ".join([name, *map(str, some)]) for name, some in blocks.items() if some)]
    )
