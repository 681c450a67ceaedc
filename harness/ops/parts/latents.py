"""What the calls of both decodes of latents share."""

from __future__ import annotations

from harness.ops.parts.call import Setting


def rounded_products(setting: Setting, kv: str) -> str:
    """The kernel's products with a cache of type `kv`, if that is fp8.

    With others it multiplies what the cache has.
    """
    return setting.spec.fp8_products if kv.startswith("fp8") else "float32"


def rank_keyword(setting: Setting, kv_lora_rank: int) -> dict[str, int]:
    """The keyword `kv_lora_rank`, for a kernel that takes it."""
    return {"kv_lora_rank": kv_lora_rank} if "kv_lora_rank" in setting.spec.takes else {}
