"""What the calls of both decodes of latents share."""

from __future__ import annotations

from typing import Any

from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.mla_decode_sparse.params import MlaDecodeSparseParams
from harness.ops.parts.call import Setting


def rounded_products(setting: Setting, params: MlaDecodeParams | MlaDecodeSparseParams) -> str:
    """The kernel's products with an fp8 cache. With others it multiplies what the cache has."""
    return setting.spec.fp8_products if params.kv.startswith("fp8") else "float32"


def rank_keyword(
    setting: Setting, params: MlaDecodeParams | MlaDecodeSparseParams
) -> dict[str, Any]:
    return {"kv_lora_rank": params.kv_lora_rank} if "kv_lora_rank" in setting.spec.takes else {}
