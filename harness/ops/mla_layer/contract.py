"""The contract of `mla_layer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from harness.core.contract import Arg, Keyword, Op, Out


class MlaLayer(Op):
    """A whole MLA layer over new prompts, hidden states to hidden states. A token sees itself and
    the tokens before it.

    Tokens at or past seq_lens[b] are padding and influence no token of a prompt. Rope turns the
    pairs (2j, 2j + 1) of the last E elements. Both norms divide by the root mean square. Source:
    DeepSeek-V2, arXiv 2405.04434.
    """

    name = "mla_layer"
    sizes = ("num_heads", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
    scratch = ()
    tokens = "prefill"
    letters: ClassVar[Mapping[str, str]] = {
        "U": "hidden size",
        "Q": "`q_lora_rank`",
        "F": "`qk_nope_head_dim`",
        "HA": "H * (F + E)",
        "HB": "H * (F + V)",
        "HV": "H * V",
        "E/2": "pairs that rope turns",
    }

    hidden = Arg(
        "B S U",
        "float32",
        unowned={"graph.pad_rows": "tokens past the end of a prompt"},
        must_be_finite=True,
    )
    seq_lens = Arg("B", "int32")
    cos = Arg("S E/2", "float32", "of the angle of each position")
    sin = Arg("S E/2", "float32")
    q_a_proj = Arg("Q U", "float32")
    q_a_layernorm = Arg("Q", "float32")
    q_b_proj = Arg("HA Q", "float32", "of each head F elements without rope, then E")
    kv_a_proj = Arg("D U", "float32", "R elements of the latent, then E of the key that has rope")
    kv_a_layernorm = Arg("R", "float32")
    kv_b_proj = Arg("HB R", "float32", "of each head F elements of the key, then V")
    o_proj = Arg("U HV", "float32")

    num_heads = Keyword("int", "H")
    scale = Keyword("float", "the softmax scale")
    epsilon = Keyword("float", "is added to the mean of squares")

    out = Out("B S U", "float32", site="output")


CONTRACT = MlaLayer()
