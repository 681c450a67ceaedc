"""Parameters that do not go together are refused: no case can be made of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from harness.core.engine_params import EngineParams
from harness.core.move_params import MoveParams
from harness.core.params import ILLEGAL, Params
from harness.ops.read_records.params import ReadRecordsParams

SMALL = {"requests": [[5, 3]], "num_blocks": 40}


@pytest.mark.parametrize(
    ("model", "given", "named"),
    [
        (MoveParams, {"block_size": 16, "kernel_block": 64}, "kernel_block"),
        (MoveParams, {"shared_prefix": 4, "groups": ["window"]}, "shared_prefix"),
        (MoveParams, {"shared_prefix": 20}, "shared_prefix"),
        (MoveParams, {"num_blocks": 4, "requests": [[100, 20]]}, "num_blocks"),
        (ReadRecordsParams, {"seq_lens": [0, 0]}, "seq_lens"),
        (EngineParams, {"requests": []}, "requests"),
        (EngineParams, SMALL | {"aborts": [[7, 1]]}, "aborts"),
        (EngineParams, SMALL | {"changes": [["reload", 0]], "flush": True}, "flush"),
        (EngineParams, SMALL | {"adapters": [0, 1], "flush": False}, "adapters"),
        (EngineParams, SMALL | {"prefix_caching": True, "layers": ["window"]}, "prefix_caching"),
        (EngineParams, SMALL | {"speculative_tokens": 2, "layers": ["kda"]}, "speculative_tokens"),
        (EngineParams, SMALL | {"amax_rows": "batch", "layers": ["sparse"]}, "amax_rows"),
        (EngineParams, SMALL | {"amax_rows": "batch", "dp_rank_tokens": 16}, "amax_rows"),
    ],
)
def test_what_does_not_go_together_is_refused_by_the_name_of_a_parameter(
    model: type[Params], given: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(given)
    (error,) = refused.value.errors()
    assert error["type"] == ILLEGAL and named in error["msg"]
