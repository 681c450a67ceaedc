"""What every dispatch mode here has in common: torch.compile's machinery leaves it alone."""

from __future__ import annotations


class QuickDispatch:
    """Stands before `TorchDispatchMode` among the bases of a mode, whose dispatches are then not prepared for
    torch.compile: torch's default wraps each one, at a third of its cost and a second for the import."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
