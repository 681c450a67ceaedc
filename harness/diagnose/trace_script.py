"""A trace of requests as a script that needs `httpx` alone, for the thread of an upstream issue."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from harness.accuracy.script import Request
from harness.accuracy.script_check import ScriptCheck

_TEXT = Template('''\
# Asks a server each request alone and uncached, then all of them as a trace in time, and compares the tokens.
import asyncio
import json
import sys
import uuid

import httpx

URL, MODEL = sys.argv[1] if len(sys.argv) > 1 else $url, $model
NEAR = $near  # nats: two tokens closer than this in the lone answer are a tie
# A step is (at once?, requests); a request (token ids, tokens asked for, seconds until it arrives, tokens until abort).
STEPS = [
$steps]


async def ask(client, salt, prompt, budget, delay=0.0, stop=None):
    """The tokens of one answer, each with the log probabilities of the best at its place."""
    await asyncio.sleep(delay)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": budget, "temperature": 0.0, "ignore_eos": True}
    body |= {"logprobs": 5, "return_tokens_as_token_ids": True, "cache_salt": salt, "stream": True}
    found = []
    async with client.stream("POST", f"{URL}/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if stop is not None and len(found) >= stop:
                break
            if line.startswith("data: {"):
                part = json.loads(line[6:])["choices"][0]["logprobs"]
                found += zip(part["tokens"], part["top_logprobs"])
    return found if stop is None else found[:stop]


async def prefill(client, prompt, answer):
    """What a prefill of prompt and answer prefers to the answer; empty if nothing, or if no prompt is scored."""
    ids = [int(token.removeprefix("token_id:")) for token, _ in answer if token.startswith("token_id:")]
    body = {"model": MODEL, "prompt": prompt + ids, "max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
    body |= {"logprobs": 5, "prompt_logprobs": 1, "cache_salt": uuid.uuid4().hex}
    reply = (await client.post(f"{URL}/completions", json=body)).json()
    rows = (reply.get("choices") or [{}])[0].get("prompt_logprobs") or []
    for place, (token, row) in enumerate(zip(ids, rows[len(prompt):])):
        margin = max(entry["logprob"] for entry in row.values()) - row[str(token)]["logprob"]
        if margin > NEAR:
            return f"asked alone, token {place}: {token}; a prefill prefers another by {margin:.3f} nats"
    return ""


def difference(found, alone, is_whole):
    """What is wrong with an answer; empty if nothing is, or from a near tie on."""
    for place, ((token, now), (right, best)) in enumerate(zip(found, alone)):
        if token != right:
            margin = best[right] - best.get(token, min(best.values()))
            return "" if margin <= NEAR else f"token {place}: {token} instead of {right}, margin {margin:.3f} nats"
        if abs(now[token] - best[token]) > NEAR / 2:
            return f"token {place}: log probability {now[token]:.3f} instead of {best[token]:.3f}"
    return f"{len(found)} tokens instead of {len(alone)}" if is_whole and len(found) != len(alone) else ""


async def main():
    failed = 0
    async with httpx.AsyncClient(timeout=$timeout, limits=httpx.Limits(max_connections=None)) as client:
        alone = [[await ask(client, uuid.uuid4().hex, *one[:2]) for one in asked] for _, asked in STEPS]
        for (_, asked), answers in zip(STEPS, alone):
            for one, answer in zip(asked, answers):
                if wrong := await prefill(client, one[0], answer):
                    failed += 1
                    print(f"a request of {len(one[0])} tokens: {wrong}")
        for attempt in range(1 if failed else 10):  # the order on a server is not the same each time
            salt = uuid.uuid4().hex
            for number, (at_once, asked) in enumerate(STEPS):
                calls = [ask(client, salt, *one) for one in asked]
                found = await asyncio.gather(*calls) if at_once else [await call for call in calls]
                for place, (one, answer, right) in enumerate(zip(asked, found, alone[number])):
                    if wrong := difference(answer, right, one[3] is None):
                        failed += 1
                        print(f"step {number + 1}, request {place + 1} ({len(one[0])} tokens): {wrong}")
            if failed:
                break
    print(f"{failed} answers differ from the same request asked alone")
    return failed


if __name__ == "__main__":
    sys.exit(bool(asyncio.run(main())))
''')


def trace_script(check: ScriptCheck, model: str, steps: Sequence[tuple[bool, Sequence[Request]]]) -> str:
    """The script of a trace: for each step whether its requests come at once, and the requests."""
    rows = [
        f"    ({at_once}, [\n"
        + "".join(f"        ({list(q.prompt)}, {q.max_tokens}, {q.delay}, {q.abort_after}),\n" for q in asked)
        + "    ]),\n"
        for at_once, asked in steps
    ]
    return _TEXT.substitute(
        url=repr(check.url.rstrip("/")),
        model=repr(model),
        near=2 * check.tolerance,
        timeout=check.timeout,
        steps="".join(rows),
    )
