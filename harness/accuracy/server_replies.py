"""What a server answers to a request of a script: tokens, log probabilities, and the best tokens at
each place, as vLLM and SGLang write them and as llama.cpp does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from harness.accuracy.server_backend import log_probability, whole_number

MOST_TOKENS = 1 << 31
"""The most tokens of a prompt that a server can count."""
Scores = list[tuple[float, int]]
"""For each token of an answer: by how many nats another token is preferred, and this token."""
_ID = re.compile(r"token_id:(\d{1,18})", re.ASCII)


@dataclass(frozen=True)
class ServerReply:
    """The tokens of an answer, with their log probabilities, and the best tokens at each place.

    `error` is the reason for no answer. A token is `token_id:N`, or its text if the server does not
    say the id.
    """

    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[dict[str, float], ...] = ()
    num_prompt_tokens: int | None = None
    error: str = ""
    text: str = ""

    @property
    def ids(self) -> list[int] | None:
        """The tokens as numbers; None if the server does not say them."""
        found = [_ID.fullmatch(token) for token in self.tokens]
        return [int(match[1]) for match in found if match] if all(found) else None

    def __add__(self, more: ServerReply) -> ServerReply:
        """Two parts of one answer."""
        return ServerReply(
            self.tokens + more.tokens,
            self.logprobs + more.logprobs,
            self.top + more.top,
            text=self.text + more.text,
        )


def read_reply(reply: dict[str, Any]) -> ServerReply:
    """A completion, or a part of one in a stream, as a server sends it."""
    if "refused" in reply:
        return ServerReply(error=str(reply["refused"]))
    if reply.get("choices") == []:
        # The last part of a stream may have the usage alone.
        return ServerReply()
    try:
        found = reply["choices"][0]["logprobs"] or {
            "tokens": (),
            "token_logprobs": (),
            "top_logprobs": (),
        }
        if "content" in found:
            found = _by_token(found["content"])
        count = (reply.get("usage") or {}).get("prompt_tokens")
        read = ServerReply(
            tuple(map(str, found["tokens"])),
            tuple(map(log_probability, found["token_logprobs"])),
            tuple(
                {str(name): log_probability(value) for name, value in top.items()}
                for top in found["top_logprobs"]
            ),
            whole_number(count, MOST_TOKENS),
            text=str(reply["choices"][0].get("text", "")),
        )
        if len({len(read.tokens), len(read.logprobs), len(read.top)}) > 1:
            raise ValueError("other numbers of tokens and of log probabilities")
        return read
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        why = f": {error}" if isinstance(error, ValueError) else ""
        return ServerReply(error=f"the reply has no log probabilities{why}")


def _by_token(content: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """llama.cpp's log probabilities, an object for each token, in the form of completions."""
    return {
        "tokens": [_named(row) for row in content],
        "token_logprobs": [row["logprob"] for row in content],
        "top_logprobs": [
            {_named(best): best["logprob"] for best in row["top_logprobs"]} for row in content
        ],
    }


def _named(row: dict[str, Any]) -> str:
    return f"token_id:{int(row['id'])}"


def scores_of_prompt(answer: list[int], rows: list[dict[str, dict[str, float]]]) -> Scores:
    """The scores of an answer's tokens by the `prompt_logprobs` at their places."""
    return [_score(token, row) for token, row in zip(answer, rows, strict=True)]


def _score(token: int, row: dict[str, dict[str, float]]) -> tuple[float, int]:
    known = {int(name): log_probability(entry["logprob"]) for name, entry in row.items()}
    best = max(known, key=lambda name: known[name])
    return known[best] - known[token], best


def score_of_next(token: int, reply: ServerReply) -> tuple[float, int]:
    """The score of a token by a reply of one token, which it should have been.

    A token that is not among the best is as far away as the last of them. Raises ValueError for a
    reply without tokens and their numbers.
    """
    if reply.error or not (preferred := reply.ids):
        raise ValueError(reply.error or "the reply has no numbers of tokens")
    # Not the best of `top`: a server that ignores the end of the sequence ranks it all the same.
    (top,), (best,) = reply.top, reply.logprobs
    known = top.get(f"token_id:{token}", min(top.values()))
    return (0.0 if preferred == [token] else best - known), preferred[0]
