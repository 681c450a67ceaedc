from dataclasses import dataclass
from typing import Any


@dataclass
class MLAAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: Any
