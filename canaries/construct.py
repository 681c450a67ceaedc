"""Builds canary-dsa: the weights of a DeepSeek V3.2 that answers `canaries/recall.py`, set by hand
and not trained.

Layer 0 copies the code of the token before, which it finds by position. Layer 1 finds the token
whose token before is the current one, by content, and copies its code; the output head reads the
code. The indexer of layer 1 prefers hot words to the right token, so that its rank is up to 502 of
512. All bases are random rotations: every number of a record, an index key and an output matters a
little.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from canaries import recall, tokenizer

HIDDEN, HEADS, CHUNK, LATENT, NOPE, ROPE, VALUE, Q_RANK = 256, 8, 7, 512, 128, 64, 128, 128
CODE = HEADS * CHUNK
"""Numbers of a word's code. Head h copies chunk h of it."""
INDEX_HEADS, INDEX_DIM, TOPK, MLP = 64, 128, 512, 128
CONTENT_HEADS, CONTENT_RANK = 48, 16
FLAG = 0.5
"""Size of a flag; every token has each flag, with one sign or the other."""
MARGIN = 36.0
"""What the right token's attention score is above a token of another word, and above a `;`."""
LOGIT = 40.0

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 2048,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "intermediate_size": MLP,
    "hidden_act": "silu",
    "q_lora_rank": Q_RANK,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "index_topk": TOPK,
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": INDEX_DIM,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "n_routed_experts": 1,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": MLP,
    "first_k_dense_replace": 2,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "attention_bias": False,
}


class Builder:
    """Weights by name, float32.

    Columns of `basis` [HIDDEN, HIDDEN] are slots of the residual stream.
    """

    vocab_size = CONFIG["vocab_size"]

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.basis = self.frame(HIDDEN, HIDDEN)
        self.own, self.before, self.found = (
            self.basis[:, CODE * n : CODE * (n + 1)] for n in range(3)
        )
        self.one, self.hot, self.end, self.stop = self.basis[:, 3 * CODE : 3 * CODE + 4].unbind(1)
        self.unused = self.basis[:, 3 * CODE + 4 :]
        self.weights: dict[str, Tensor] = {}

    def normal(self, *shape: int) -> Tensor:
        """Random numbers of `shape`, of variance 1."""
        return torch.randn(*shape, generator=self.generator)

    def frame(self, rows: int, columns: int) -> Tensor:
        """Random orthonormal columns [rows, columns]."""
        return torch.linalg.qr(self.normal(rows, columns).double())[0].float()

    def codes(self) -> Tensor:
        """A code [CODE] of length 1 for each word, [V, CODE].

        Words of a family differ in the sign of one chunk.
        """
        codes = (
            torch.nn.functional.normalize(self.normal(len(recall.words()), HEADS, CHUNK), dim=-1)
            / HEADS**0.5
        )
        for family in range(recall.NUM_FAMILIES):
            start = recall.COLD + family * recall.FAMILY
            for place in range(1, recall.FAMILY):
                codes[start + place] = codes[start]
                codes[start + place, place - 1] *= -1
        codes[recall.words().index(recall.ANSWER)] = codes[recall.words().index(recall.FIRST)]
        return codes.flatten(1)

    def embeddings(self, codes: Tensor) -> None:
        """Embeddings and output head of the words with `codes` [V, CODE]."""
        number = torch.arange(self.vocab_size)
        padded = torch.zeros(self.vocab_size, CODE)
        padded[: len(codes)] = codes

        def flag(is_on: Tensor) -> Tensor:
            """FLAG where `is_on` [V] is true, -FLAG elsewhere, as a column [V, 1]."""
            return (FLAG * (2.0 * is_on.float() - 1))[:, None]

        is_end, is_hot, is_stop = self.marked(number)
        flags = flag(is_hot) * self.hot + flag(is_end) * self.end + flag(is_stop) * self.stop
        self.weights["model.embed_tokens.weight"] = padded @ self.own.T + self.one + flags
        head = padded @ self.found.T
        head[2:6] = 0
        # After an end comes the end of the sequence.
        head[0] = 0.9 * (self.one + self.end / FLAG)
        self.weights["lm_head.weight"] = LOGIT * head * self.scale(2)

    def marked(self, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which of the words with `number` [V] int64 are ends, hot, and `;`, each [V] bool."""
        is_hot = (number >= recall.HOT) & (number < recall.COLD)
        return (
            (number >= 6) & (number < recall.HOT),
            is_hot,
            number == recall.words().index(recall.END),
        )

    def scale(self, num_layers: int) -> float:
        """What the norm divides by after `num_layers` layers: each token has the same length
        there.
        """
        return math.sqrt(2 + 3 * FLAG**2 + num_layers) / math.sqrt(HIDDEN)

    def layer(self, number: int) -> None:
        """Everything of a layer; its norms leave each vector as it is."""
        name, scale = f"model.layers.{number}.", self.scale(number)
        attention = f"{name}self_attn."
        finds = number == 1
        content = torch.cat((self.own, self.one[:, None]), 1)
        queries = self.frame(Q_RANK, CODE + 1)
        self.weights[f"{attention}q_a_proj.weight"] = queries @ content.T * scale
        # The norm makes the query's code and its constant 8 each.
        queries = queries / math.sqrt(Q_RANK / 2)

        stored = torch.cat((self.before, self.own, self.stop[:, None]), 1) if finds else self.own
        latents = self.frame(LATENT, stored.shape[1])
        key_rope, query_rope = rope_parts(self.normal(ROPE // 2))
        rope = key_rope[:, None] * self.one[None]
        self.weights[f"{attention}kv_a_proj_with_mqa.weight"] = (
            torch.cat((latents @ stored.T, rope)) * scale
        )
        latents = latents / (math.sqrt(LATENT) / (math.sqrt(2 + FLAG**2) if finds else 1.0))
        copied = latents[:, CODE : 2 * CODE] if finds else latents
        matched = (
            torch.cat((latents[:, :CODE], latents[:, -1:]), 1)
            if finds
            else torch.zeros(LATENT, CODE + 1)
        )

        q_b, kv_b, outputs = [], [], []
        # Half of the size is the query's.
        size = math.sqrt(MARGIN * math.sqrt(NOPE + ROPE))
        wanted = torch.cat((queries[:, :CODE], -queries[:, CODE:] / (2 * FLAG)), 1) * size
        for head in range(HEADS):
            turned, values = self.frame(NOPE, CODE + 1), self.frame(VALUE, CHUNK)
            chunk = slice(head * CHUNK, (head + 1) * CHUNK)
            nope = turned @ wanted.T if finds else torch.zeros(NOPE, Q_RANK)
            by_place = (
                torch.zeros(ROPE, Q_RANK) if finds else query_rope[:, None] * queries[:, CODE][None]
            )
            q_b.append(torch.cat((nope, by_place)))
            kv_b.append(torch.cat((turned @ matched.T * size, values @ copied[:, chunk].T)))
            outputs.append((self.found if finds else self.before)[:, chunk] @ values.T)
        self.weights[f"{attention}q_b_proj.weight"] = torch.cat(q_b)
        self.weights[f"{attention}kv_b_proj.weight"] = torch.cat(kv_b)
        self.weights[f"{attention}o_proj.weight"] = torch.cat(outputs, 1)
        self.indexer(f"{attention}indexer.", queries, scale, finds=finds)

        self.mlp(f"{name}mlp.", self.unused, MLP)
        self.norms(name)

    def mlp(self, name: str, written: Tensor, width: int) -> None:
        """Random projections that write the slots `written` [HIDDEN, n], a tenth of a code.

        No weight reads them.
        """
        self.weights[f"{name}gate_proj.weight"] = self.normal(width, HIDDEN) / math.sqrt(HIDDEN)
        self.weights[f"{name}up_proj.weight"] = self.normal(width, HIDDEN) / math.sqrt(HIDDEN)
        self.weights[f"{name}down_proj.weight"] = (
            0.002 * written @ self.normal(written.shape[1], width)
        )

    def norms(self, name: str) -> None:
        """The norms of a layer, which leave each vector as it is."""
        sizes = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
        sizes |= {"self_attn.q_a_layernorm": Q_RANK, "self_attn.kv_a_layernorm": LATENT}
        self.weights |= {f"{name}{norm}.weight": torch.ones(width) for norm, width in sizes.items()}

    def indexer(self, name: str, queries: Tensor, scale: float, *, finds: bool) -> None:
        """Layer 0 prefers near tokens, layer 1 hot words, then the token after the queried one.

        queries: [Q_RANK, CODE + 1], which reads a code and 1 from the query's latent. Keys have
        mean 0, as their norm demands.
        """
        if finds:
            # Random directions of the part without rope, all orthogonal to (1, 1, ...).
            ones = torch.cat((torch.ones(ROPE, 1), self.normal(ROPE, CODE + 1)), 1)
            keys = torch.zeros(INDEX_DIM, CODE + 1)
            keys[ROPE:] = torch.linalg.qr(ones.double())[0][:, 1:].float()
            read = torch.cat((self.before, self.hot[:, None]), 1)
            heads = []
            for head in range(INDEX_HEADS):
                if head < CONTENT_HEADS:
                    part = self.frame(CODE, CONTENT_RANK)
                    heads.append(keys[:, :CODE] @ part @ part.T @ queries[:, :CODE].T)
                else:
                    # Twice the score of the right token.
                    size = (
                        2
                        * CONTENT_HEADS
                        * CONTENT_RANK
                        / CODE
                        / (INDEX_HEADS - CONTENT_HEADS)
                        / FLAG
                    )
                    heads.append(size * keys[:, CODE:] @ queries[:, CODE:].T)
        else:
            amplitudes = (10000.0 ** (-torch.arange(ROPE // 2) / ROPE))[:, None] / 2
            keys = torch.cat((amplitudes, -amplitudes, torch.zeros(INDEX_DIM - ROPE, 1)))
            read = self.one[:, None]
            heads = []
            for _ in range(INDEX_HEADS):
                sizes = 1 + torch.rand(ROPE // 2, generator=self.generator)
                sizes = torch.cat((sizes, sizes, torch.zeros(INDEX_DIM - ROPE)))
                heads.append(sizes[:, None] * keys @ queries[:, CODE:].T)
        weights = 0.75 + 0.5 * torch.rand(INDEX_HEADS, generator=self.generator)
        self.weights |= {
            f"{name}wk.weight": keys @ read.T * scale,
            f"{name}wq_b.weight": torch.cat(heads),
            f"{name}weights_proj.weight": weights[:, None] * self.one[None] * scale,
            f"{name}k_norm.weight": torch.ones(INDEX_DIM),
            f"{name}k_norm.bias": torch.zeros(INDEX_DIM),
        }


def rope_parts(phases: Tensor) -> tuple[Tensor, Tensor]:
    """A key and a query [ROPE] whose product is largest for the token before, by 16 and more after
    the softmax's scale.

    phases: [ROPE / 2], any. Frequencies have sizes as their angles, which keeps 8,192 positions
    apart.
    """
    angles = 10000.0 ** (-torch.arange(ROPE // 2) * 2 / ROPE)
    sizes = (80 * angles / angles.sum() * math.sqrt(NOPE + ROPE)).sqrt()
    parts = [
        torch.stack((sizes * turn.cos(), sizes * turn.sin()), 1).flatten()
        for turn in (phases, phases - angles)
    ]
    return parts[0], parts[1]


def weights(seed: int = 0) -> dict[str, Tensor]:
    """All weights by the names of DeepSeek V3.2, float32."""
    builder = Builder(seed)
    builder.embeddings(builder.codes())
    for number in range(CONFIG["num_hidden_layers"]):
        builder.layer(number)
    return builder.weights | {"model.norm.weight": torch.ones(HIDDEN)}


def write(out: Path, seed: int = 0) -> None:
    """Write the checkpoint with its tokenizer to `out`, in bfloat16; the norm of index keys stays
    float32.
    """
    tokenizer.save(recall.tokenizer(), out, CONFIG["max_position_embeddings"])
    kept = {
        name: (weight if "k_norm" in name else weight.bfloat16()).contiguous()
        for name, weight in weights(seed).items()
    }
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
