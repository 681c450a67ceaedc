"""Solutions of FlashInfer-Bench: a right and a wrong one, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

DECODE = "mla_paged_decode_h16_ckv512_kpe64_ps1"
RUN = """
import math
import torch

def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale, output, lse):
    keys = torch.cat((ckv_cache, kpe_cache), -1)[:, 0].float()
    q = torch.cat((q_nope, q_pe), -1).float()
    for b in range(len(q)):
        mine = keys[kv_indices[kv_indptr[b] + SKIPPED : kv_indptr[b + 1]].long()]
        if not len(mine):
            continue
        scores = q[b] @ mine.T * sm_scale
        lse[b] = scores.logsumexp(-1) / math.log(2)
        output[b] = (scores.softmax(-1) @ mine[:, :512]).to(output.dtype)
"""


def solution(text: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": "attempt 1",
        "definition": DECODE,
        "author": "me",
        "spec": {
            "language": "python",
            "target_hardware": ["cpu"],
            "entry_point": "src/main.py::run",
        },
        "sources": [{"path": "src/main.py", "content": text}],
        **changes,
    }


@pytest.mark.first(1)
@pytest.mark.parametrize(("skipped", "code"), [("0", 0), ("1", 1)])
def test_a_solution_is_judged_by_its_definition(
    cli: Cli, tmp_path: Path, skipped: str, code: int
) -> None:
    file = tmp_path / "solution.json"
    file.write_text(json.dumps(solution(RUN.replace("SKIPPED", skipped))))
    words = ("decode-kernel[planned=unplanned]", "--seed", 3, "--out", tmp_path / "runs")
    found, out, error = cli("judge", file, *words)
    assert found == code, out + error


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "no JSON"),
        ({"name": "d", "axes": {}, "reference": "def run(): ..."}, "a Definition"),
        ({"name": "d"}, "no Solution"),
        (solution(RUN, definition="gemm_n4096_k4096"), "judged are mla_paged_decode_*"),
        (
            solution(RUN, spec={"language": "cuda", "entry_point": "main.cu::run"}),
            "language 'cuda'",
        ),
        (solution(RUN, sources=[{"path": "../main.py", "content": RUN}]), "leads out"),
    ],
)
def test_what_is_no_solution_is_refused_in_one_line(
    cli: Cli, tmp_path: Path, content: Any, says: str
) -> None:
    file = tmp_path / "solution.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    code, _, error = cli("judge", file, "--out", tmp_path / "runs")
    assert code == 2 and says in error and error.count("\n") == 1
