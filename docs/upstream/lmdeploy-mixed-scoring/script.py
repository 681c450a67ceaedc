"""LMDeploy: a request that scores its prompt ends the engine if another is prefilled beside it.

    lmdeploy serve api_server MODEL --backend pytorch --logprobs-mode raw_logprobs
    python script.py http://127.0.0.1:23333

The model does not matter. It sends requests that generate and requests that score their prompt
(`max_tokens: 0, logprob_start_len: 0`), first each kind alone, then both at once.
"""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

URL = sys.argv[1] + "/generate"
PROMPTS = [[20 + n, *range(40, 70)] for n in range(12)]
SCORING = {"max_tokens": 0, "return_logprob": True, "logprob_start_len": 0}
GENERATING = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0}


def ask(prompt, more):
    """The status and the generated tokens."""
    body = json.dumps({"input_ids": prompt} | more).encode()
    request = urllib.request.Request(URL, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=15) as reply:
            return reply.status, json.load(reply)["output_ids"]
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError as error:
        return type(error).__name__, None


def statuses(replies):
    found = [str(status) for status, _ in replies]
    return ", ".join(f"{found.count(one)} times {one}" for one in sorted(set(found)))


with ThreadPoolExecutor(2 * len(PROMPTS)) as pool:
    right = [ask(prompt, GENERATING) for prompt in PROMPTS]
    print("generating, one after another:", statuses(right))
    scored = list(pool.map(lambda prompt: ask(prompt, SCORING), PROMPTS))
    print("scoring, all at once:         ", statuses(scored))
    now = list(pool.map(lambda prompt: ask(prompt, GENERATING), PROMPTS))
    print("generating, all at once:      ", statuses(now))
    for number in range(1, 11):
        pairs = [(prompt, more) for prompt in PROMPTS for more in (GENERATING, SCORING)]
        replies = list(pool.map(lambda pair: ask(*pair), pairs))
        answers = [tokens for status, tokens in replies[::2] if status == 200]
        short = [tokens for tokens in answers if len(tokens) != GENERATING["max_tokens"]]
        print(f"both at once, round {number}: {statuses(replies)}; {len(short)} answers too short")
        if short:
            print(f"  asked for {GENERATING['max_tokens']} tokens, and got {short[0]}")
        if any(status != 200 for status, _ in replies):
            break
after = ask(PROMPTS[0], GENERATING)
print(f"a request after it: {after[0]} (expected 200)")
raise SystemExit(after[0] != 200)
