"""The folders of the project's tasks, questions and baselines, in a checkout or an installed package."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).resolve().parents[1] / "_fixtures"
_CHECKOUT = Path(__file__).resolve().parents[2] / "fixtures"

FIXTURES = _CHECKOUT if _CHECKOUT.is_dir() else _INSTALLED
TASKS = FIXTURES / "tasks"
BASELINES = FIXTURES / "baselines"
