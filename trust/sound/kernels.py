"""Sound variants: kernels that are right, and differ as real kernels do.

They are the controls of the oracles.

`sound-7` is a variant of each op, drawn from seed 7. Every finding about it is a false alarm. No
torch here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, get_args

from harness.core.call_words import RecordFormat
from harness.core.kernels import SOUND, Bf16Step, EmptyLse, Fp8Products, KernelSpec
from harness.core.registry import attribute_at
from harness.core.shapes import ANY


@dataclass(frozen=True, slots=True)
class Style:
    """The choices of a variant.

    Roundings to bfloat16 and e4m3 apply where the query is bfloat16, as in real kernels.

    - `splits`: pieces of a request. `backwards`: pieces and pages are read from the last to the
      first.
    - `depth`: parts in which the products of a score are added. `base_2`: exponentials of base 2.
    - `scale_query`: the scale multiplies the query, not the scores. `reciprocal`: a division is a
      product with 1 / x.
    - `bf16_probabilities`, `bf16_sums`, `bf16_partials`: values that are rounded to bfloat16.
    - `products`: the type in which an e4m3 cache is multiplied.
    - `writes_empty`: rows without keys are written. `plus_inf`: the lse of a context without keys
      is +inf.
    - `follows_plan`: cuts a request as the plan says. `live_only`: routes live tokens only.
      `logits_first`: chooses experts before the softmax.
    """

    splits: int
    backwards: bool
    depth: int
    base_2: bool
    scale_query: bool
    reciprocal: bool
    bf16_probabilities: bool
    bf16_sums: bool
    bf16_partials: bool
    products: Fp8Products
    writes_empty: bool
    plus_inf: bool
    follows_plan: bool
    live_only: bool
    logits_first: bool

    @classmethod
    def drawn(cls, seed: int) -> Style:
        """The style of `seed`, the same on every machine."""
        rng = Random(f"sound:{seed}")

        def coin() -> bool:
            return rng.random() < 0.5

        return cls(
            splits=rng.randint(1, 8),
            backwards=coin(),
            depth=rng.choice([1, 2, 4]),
            base_2=coin(),
            scale_query=coin(),
            reciprocal=coin(),
            bf16_probabilities=(probabilities := coin()),
            bf16_sums=probabilities and coin(),
            bf16_partials=coin(),
            products=rng.choice(["float32", "bf16", "fp8"]),
            writes_empty=coin(),
            plus_inf=coin(),
            follows_plan=rng.random() < 0.25,
            live_only=coin(),
            logits_first=coin(),
        )

    @property
    def declared_products(self) -> Fp8Products:
        """What the variant declares: the bounds of float32 products leave no room for other
        roundings.
        """
        is_rounded = self.bf16_probabilities or self.bf16_partials
        return "bf16" if self.products == "float32" and is_rounded else self.products

    @property
    def record_products(self) -> Fp8Products:
        """The type that rows of records are rounded to; no such kernel multiplies in fp8."""
        return "bf16" if self.products == "bf16" else "float32"

    @property
    def bf16_steps(self) -> tuple[Bf16Step, ...]:
        """What the variant declares."""
        steps: tuple[tuple[Bf16Step, bool], ...] = (
            ("partials", self.bf16_partials),
            ("sums", self.bf16_sums),
        )
        return tuple(name for name, is_made in steps if is_made)


def sound_variants(name: str) -> tuple[KernelSpec, ...]:
    """The variants called `name`, short (`sound-7`) or `op/short`, one for each op; none for any
    other name.
    """
    short = name.rpartition("/")[2]
    number = short.removeprefix(SOUND)
    if number == short or not (number.isascii() and number.isdigit()) or str(int(number)) != number:
        return ()
    style = Style.drawn(int(number))
    empty_lse: EmptyLse = "-inf" if style.writes_empty else "undefined"
    attention: dict[str, Any] = {
        "empty_rows": "identity" if style.writes_empty else "undefined",
        "empty_lse": empty_lse,
        "fp8_products": style.declared_products,
        "bf16_steps": style.bf16_steps,
    }
    promises: dict[str, dict[str, Any]] = {
        "mla_decode": attention | {"takes": ("window",)},
        "mla_decode_plan": {},
        "mla_decode_sparse": attention,
        "context_attention": {"empty_lse": "+inf" if style.plus_inf else "-inf"},
        "merge_attn_states": {},
        "write_kv": {},
        "quantize_fp8": {},
        "route_experts": {"takes": ("num_live",) if style.live_only else ()},
        "quantize_blocks": {},
        "align_experts": {},
        "write_records": {"kv": get_args(RecordFormat)},
        "read_records": {"kv": get_args(RecordFormat), "fp8_products": style.record_products},
    }
    return tuple(
        KernelSpec(
            op, short, f"{style}", _lazily(op, style), shapes=ANY, origin="sound variant", **more
        )
        for op, more in promises.items()
    )


def _lazily(op: str, style: Style) -> Callable[..., Any]:
    return partial(_call, f"trust.sound.code:{op}", style)


def _call(place: str, style: Style, *args: Any, **kwargs: Any) -> Any:
    return attribute_at(place)(style, *args, **kwargs)
