"""Builds canary-mtp: a DeepSeek V3 set by hand, with a module for multi-token prediction whose
drafts are all right.

The target is that of `canaries/construct.py` without an indexer. The module has the same work as
the target's layer 1: the row of a token has the token behind it as well, so one layer finds the
word after the next one. It looks for a record whose key is both the token behind (from the
embedding) and the target's guess of it (from the hidden state). If these differ it reads the first
row of the prompt. Its last head takes the sign of the word from the row before, by position. So a
wrong hidden state, token, row of the cache or position makes the draft wrong.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from canaries import construct, drafts, recall, tokenizer
from canaries.construct import (
    CHUNK,
    CODE,
    FLAG,
    HEADS,
    HIDDEN,
    LATENT,
    NOPE,
    Q_RANK,
    ROPE,
    VALUE,
    Builder,
    rope_parts,
)

EXPERTS, WIDTH = 4, 128
WAS = 0.5
"""Size of the target's guess in the module's stream."""
MARGIN = 72.0
"""What the right row's attention score is above another row.

A row that matches one of two has half, row 0 has 3/4.
"""

CONFIG: dict[str, Any] = {
    name: value for name, value in construct.CONFIG.items() if not name.startswith("index_")
} | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
}


class DraftBuilder(Builder):
    """The target's layers and the module, which is layer `num_hidden_layers` of the checkpoint."""

    vocab_size = CONFIG["vocab_size"]

    def codes(self) -> Tensor:
        """A code for each word, [V, CODE]. The last chunk is the sign alone."""
        known = drafts.words()
        codes = (
            torch.nn.functional.normalize(self.normal(len(known), HEADS, CHUNK), dim=-1)
            / HEADS**0.5
        )
        sign = torch.arange(len(known)) % drafts.SIGNS
        for family in range(drafts.NUM_FAMILIES):
            start = recall.COLD + family * recall.FAMILY
            for place in range(1, recall.FAMILY):
                codes[start + place] = codes[start]
                if place >= drafts.SIGNS:
                    codes[start + place, place // drafts.SIGNS - 1] *= -1
            sign[start : start + recall.FAMILY] = torch.arange(recall.FAMILY) % drafts.SIGNS
        sign[6 : recall.HOT] = drafts.HOPS % drafts.SIGNS
        first, answer = (known.index(word) for word in (recall.FIRST, recall.ANSWER))
        codes[answer] = codes[first]
        sign[[first, answer]] = 0
        unit = torch.zeros(CHUNK, 1)
        unit[0] = HEADS**-0.5
        codes[:, -1] = torch.stack([(turn(n) @ unit)[:, 0] for n in range(drafts.SIGNS)])[sign]
        # The first word of a prompt is orthogonal to all others, so that no word leads to it.
        codes[known.index(recall.QUESTION)] = 0
        codes[known.index(recall.QUESTION), -1, -1] = 1
        return codes.flatten(1)

    def marked(self, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Builder.marked`.

        The word of the first row is the hot one, and the end of a sequence is an end.
        """
        is_end, _, is_stop = super().marked(number)
        return is_end | (number == 0), number == recall.words().index(recall.QUESTION), is_stop

    def indexer(self, name: str, queries: Tensor, scale: float, *, finds: bool) -> None:
        """None: every token is attended to."""

    def module(self) -> None:
        """The weights of the module."""
        name = f"model.layers.{CONFIG['num_hidden_layers']}."
        was, unused = self.unused[:, :CODE], self.unused[:, CODE:]
        ends = torch.stack((self.end, self.stop), 1)
        kept = torch.stack((self.one, self.hot), 1)
        # A `;` has 2 FLAG. Other tokens have 0, and so has the first row where an engine masks its
        # embedding.
        of_token = (
            self.own @ self.own.T + ends @ ends.T + FLAG * self.stop[:, None] * self.one[None]
        )
        of_hidden = self.before @ self.own.T + kept @ kept.T + WAS * was @ self.found.T
        self.weights |= {
            f"{name}enorm.weight": torch.ones(HIDDEN),
            f"{name}hnorm.weight": torch.ones(HIDDEN),
            f"{name}eh_proj.weight": torch.cat(
                (of_token * self.scale(0), of_hidden * self.scale(2)), 1
            ),
            f"{name}shared_head.norm.weight": torch.ones(HIDDEN),
            f"{name}shared_head.head.weight": self.weights["lm_head.weight"].clone(),
            f"{name}embed_tokens.weight": self.weights["model.embed_tokens.weight"].clone(),
        }
        self.attention(
            f"{name}self_attn.", was, math.sqrt(3 + 2 * FLAG**2 + WAS**2) / math.sqrt(HIDDEN)
        )
        self.norms(name)
        for expert in range(EXPERTS):
            self.mlp(f"{name}mlp.experts.{expert}.", unused, WIDTH)
        self.mlp(f"{name}mlp.shared_experts.", unused, WIDTH)
        self.weights[f"{name}mlp.gate.weight"] = self.normal(EXPERTS, HIDDEN) / math.sqrt(HIDDEN)
        self.weights[f"{name}mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)

    def attention(self, name: str, was: Tensor, scale: float) -> None:
        """The module's attention. was: slots [HIDDEN, CODE] of the target's guess; scale: what the
        norm divides by.
        """
        content = torch.cat((self.own, was, self.one[:, None]), 1)
        queries = self.frame(Q_RANK, content.shape[1])
        self.weights[f"{name}q_a_proj.weight"] = queries @ content.T * scale
        queries = queries / math.sqrt(Q_RANK / (2 + WAS**2))
        ones = queries[:, -1:]

        stored = torch.cat((self.before, self.own, self.stop[:, None], self.hot[:, None]), 1)
        latents = self.frame(LATENT, stored.shape[1])
        key_rope, query_rope = rope_parts(self.normal(ROPE // 2))
        rows = torch.cat((latents @ stored.T, key_rope[:, None] * self.one[None]))
        self.weights[f"{name}kv_a_proj_with_mqa.weight"] = rows * scale
        latents = latents / math.sqrt(LATENT / (2 + FLAG**2))
        copied, matched = (
            latents[:, CODE : 2 * CODE],
            torch.cat((latents[:, :CODE], latents[:, -2:]), 1),
        )

        size = math.sqrt(MARGIN * math.sqrt(NOPE + ROPE))
        both = queries[:, :CODE] / 2 + queries[:, CODE : 2 * CODE] / (2 * WAS)
        wanted = torch.cat((both, -ones / (2 * FLAG), 0.375 * ones / FLAG), 1) * size
        q_b, kv_b, outputs = [], [], []
        for head in range(HEADS):
            turned, values = self.frame(NOPE, CODE + 2), self.frame(VALUE, CHUNK)
            chunk = slice(head * CHUNK, (head + 1) * CHUNK)
            is_last = head == HEADS - 1
            nope = torch.zeros(NOPE, Q_RANK) if is_last else turned @ wanted.T
            q_b.append(
                torch.cat(
                    (nope, query_rope[:, None] * ones.T if is_last else torch.zeros(ROPE, Q_RANK))
                )
            )
            kv_b.append(torch.cat((turned @ matched.T * size, values @ copied[:, chunk].T)))
            # The row before has the sign of its own token: the word to draft is two further.
            outputs.append(
                self.found[:, chunk] @ (turn(2) if is_last else torch.eye(CHUNK)) @ values.T
            )
        self.weights[f"{name}q_b_proj.weight"] = torch.cat(q_b)
        self.weights[f"{name}kv_b_proj.weight"] = torch.cat(kv_b)
        self.weights[f"{name}o_proj.weight"] = torch.cat(outputs, 1)


def turn(steps: int) -> Tensor:
    """A rotation [CHUNK, CHUNK] of the first two numbers by `steps` of the signs."""
    angle = torch.tensor(2 * math.pi * steps / drafts.SIGNS)
    made = torch.eye(CHUNK)
    made[:2, :2] = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
    return made


def weights(seed: int = 0) -> dict[str, Tensor]:
    """All weights by the names of DeepSeek V3, float32."""
    builder = DraftBuilder(seed)
    builder.embeddings(builder.codes())
    for number in range(CONFIG["num_hidden_layers"]):
        builder.layer(number)
    builder.module()
    return builder.weights | {"model.norm.weight": torch.ones(HIDDEN)}


def write(out: Path, seed: int = 0) -> None:
    """Write the checkpoint with its tokenizer to `out`, in bfloat16; the router's bias stays
    float32.
    """
    tokenizer.save(recall.tokenizer(drafts.words()), out, CONFIG["max_position_embeddings"])
    kept = {
        name: (weight if "bias" in name else weight.bfloat16()).contiguous()
        for name, weight in weights(seed).items()
    }
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
