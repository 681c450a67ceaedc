"""Measures canary-mtp with transformers' own DeepSeek V3: the share of right answers and of
accepted drafts.

    python -m canaries.drafts_check fixtures/canary-mtp [--eagle fixtures/canary-eagle] [--drafts 3]
    [--limit N]

The module is transformers' decoder layer between the projections of vLLM's `deepseek_mtp.py`, or
with `--eagle` those of its `deepseek_eagle.py`. Drafts start behind each token of an answer, and
the later ones of a step read what the module itself made. A row of the table is a change of what a
serving engine may get wrong in the module.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from canaries import drafts, recall
from canaries.tasks import Question
from canaries.tokenizer import EOS_TOKEN_ID

CHANGES = {
    "nothing": "",
    "the embedding of the first token is read, as SGLang and Eagle do": "first",
    "hidden states of the row before": "hidden",
    "rows of decodes are not written": "stale",
    "positions of later drafts not advanced": "position",
    "the token before as input": "token",
}


class Drafter:
    """transformers' model of a checkpoint and its module for multi-token prediction, or another
    checkpoint's layer.
    """

    def __init__(
        self, folder: Path, dtype: torch.dtype = torch.float32, eagle: Path | None = None
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder)
        number = config.num_hidden_layers
        # The module's layer is one more layer of the model, which the target does not run.
        config.num_hidden_layers = number + 1
        made: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager"
        )
        self.model, self.layer = made.eval().requires_grad_(False), made.model.layers[number]
        for part in (made.model.embed_tokens, made.model.layers, made.model.norm, made.lm_head):
            part.to(dtype)
        made.model.layers = made.model.layers[:number]
        made.config.num_hidden_layers = number
        stored = load_file(folder / "model.safetensors")
        self.eh_proj = stored[f"model.layers.{number}.eh_proj.weight"].to(dtype)
        self.head = stored[f"model.layers.{number}.shared_head.head.weight"].to(dtype)
        self.layer.self_attn.layer_idx = 0
        if eagle:
            self._read_eagle(eagle, dtype)

    def _read_eagle(self, folder: Path, dtype: torch.dtype) -> None:
        """Take the layer and the projection of the draft model in `folder`, and the target's
        head.
        """
        from transformers import AutoConfig

        # All else of the folder is the target's: transformers has no model of the Eagle kind.
        config = AutoConfig.from_pretrained(folder, attn_implementation="eager")
        stored = load_file(folder / "model.safetensors")
        self.layer = type(self.layer)(config, 0).eval().requires_grad_(False)
        named = {
            name.removeprefix("layers.0."): weight.float()
            for name, weight in stored.items()
            if "layers" in name
        }
        self.layer.load_state_dict(named)
        self.layer.to(dtype)
        self.eh_proj, self.head = stored["fc.weight"].to(dtype), self.model.lm_head.weight

    def target(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden states [1, T, H] and the most likely next tokens [T] of `tokens` [T] int64."""
        hidden = self.model.model(tokens[None]).last_hidden_state
        return hidden, self.model.lm_head(hidden)[0].argmax(-1)

    def drafted(
        self, tokens: Tensor, hidden: Tensor, start: int, count: int, change: str = ""
    ) -> Tensor:
        """`count` drafts behind each token of `tokens` [T + 1] int64 after place `start`, [T -
        start, count] int64.

        hidden: [1, T, H] of the target, for the first T tokens.
        """
        from transformers import DynamicCache

        num, cache = hidden.shape[1], DynamicCache()
        places = torch.arange(start, num)
        embedded = self.model.model.embed_tokens(tokens[:-1] if change == "token" else tokens[1:])[
            None
        ]
        if change != "first":
            embedded[:, 0] = 0
        rows = hidden.roll(1, 1) if change == "hidden" else hidden
        seen = torch.ones(num, num, dtype=torch.bool).tril()
        if change == "stale":
            seen[:, start + 1 :] = False
        out = self._run(embedded, rows, torch.arange(num)[None], seen[None], cache)[0, start:, None]
        cache.batch_repeat_interleave(len(places))
        seen, positions, found = seen[start:, None], places[:, None], []
        for step in range(count):
            if step:
                seen = torch.cat((seen, torch.ones(len(places), 1, 1, dtype=torch.bool)), 2)
                positions = positions + (change != "position")
                out = self._run(
                    self.model.model.embed_tokens(found[-1])[:, None], out, positions, seen, cache
                )
            found.append((out @ self.head.T)[:, 0].argmax(-1))
        return torch.stack(found, 1)

    def _run(
        self, embedded: Tensor, hidden: Tensor, positions: Tensor, seen: Tensor, cache: Any
    ) -> Tensor:
        """What the head reads, [B, n, H], of n new rows: embedded and hidden [B, n, H], positions
        [B, n] int64.

        seen: [B, n, R] bool, which of all R rows each new row attends to.
        """
        joined = torch.cat((self._normed(embedded), self._normed(hidden)), -1) @ self.eh_proj.T
        mask = torch.zeros(seen.shape, dtype=joined.dtype).masked_fill(~seen, -torch.inf)[:, None]
        turned = self.model.model.rotary_emb(joined, positions)
        return self._normed(
            self.layer(
                joined, attention_mask=mask, past_key_values=cache, position_embeddings=turned
            )
        )

    def _normed(self, x: Tensor) -> Tensor:
        """x [..., H] by its root mean square: the module's norms have weights of 1."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def measured(
    drafter: Drafter, questions: Sequence[Question], count: int, change: str = ""
) -> tuple[int, int, int]:
    """How many answers of the target are right, how many tokens were drafted, and how many of them
    are the target's.
    """
    words, right, drafted, accepted = recall.tokenizer(drafts.words()), 0, 0, 0
    for question in questions:
        prompt, answer = words.encode(question.prompt).ids, words.encode(question.completion).ids
        tokens = torch.tensor(prompt + answer + [EOS_TOKEN_ID] * (count + 1))
        with torch.no_grad():
            hidden, chosen = drafter.target(tokens)
            right += chosen[len(prompt) - 1 : -1].tolist() == tokens[len(prompt) :].tolist()
            num = len(prompt) + len(answer)
            found = drafter.drafted(
                tokens[:num], hidden[:, : num - 1], len(prompt) - 1, count, change
            )
        wanted = tokens[len(prompt) + 1 :].unfold(0, count, 1)[: len(found)]
        # As a server counts: what follows a wrong draft is not accepted.
        drafted += found.numel()
        accepted += int((found == wanted).cumprod(1).sum())
    return right, drafted, accepted


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--eagle", type=Path, help="the folder of a draft model of the Eagle kind")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument(
        "--limit", type=int, default=len(drafts.LENGTHS), help="only the first N questions"
    )
    args = parser.parse_args()
    asked = drafts.questions()[: args.limit]
    print(
        f"| changed | type | right answers of {len(asked)} | drafts | accepted |\n| --- | --- | ---"
        " | --- | --- |"
    )
    for dtype in (torch.float32, torch.bfloat16):
        drafter = Drafter(args.folder, dtype, args.eagle)
        for name, change in CHANGES.items():
            right, drafted, accepted = measured(drafter, asked, args.drafts, change)
            kind = str(dtype).removeprefix("torch.")
            print(
                f"| {name} | {kind} | {right / len(asked):.4f} | {drafted} |"
                f" {accepted / drafted:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
