"""A small project with scenarios of its own, on which pytest is run as a user would."""

from __future__ import annotations

from pathlib import Path

import pytest

GOOD = """\
name: {name}
summary: a scenario
refs: [vllm-project/vllm#36540]
tags: [prefill]
system: kernel
op: merge_attn_states
matrix: {{num_tokens: [9, 12]}}
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty project with strict pytest settings; pytest runs in a process of its own, with the plug-in."""
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers --strict-config -p harness.pytest.plugin\nfilterwarnings = error\n"
    )
    pytester.mkdir("scenarios")
    return pytester


@pytest.fixture
def merge(project: pytest.Pytester) -> Path:
    """A scenario of two cases that pass."""
    path = project.path / "scenarios" / "merge.yaml"
    path.write_text(GOOD.format(name="merge"), encoding="utf-8")
    return path
