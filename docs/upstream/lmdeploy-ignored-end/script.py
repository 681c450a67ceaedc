"""LMDeploy: `ignore_eos` forbids the end token; it does not only go on behind it.

    python script.py http://127.0.0.1:23333 END 'a prompt whose answer ends soon'

END is the id of the end token. The server needs `--backend pytorch --logprobs-mode raw_logprobs`.
"""

import json
import sys
import urllib.request

URL, END, PROMPT = sys.argv[1] + "/generate", int(sys.argv[2]), sys.argv[3]


def ask(**more):
    body = {"prompt": PROMPT, "temperature": 0.0, "max_tokens": 300, "return_logprob": True}
    body |= {"top_logprobs_num": 2} | more
    head = {"content-type": "application/json"}
    request = urllib.request.Request(URL, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


own = ask()
end = len(own["output_ids"])
print(f"without ignore_eos: {end} tokens, {own['meta_info']['finish_reason']}")
more = ask(ignore_eos=True, max_tokens=end + 4)
best = sorted(more["meta_info"]["output_top_logprobs"][end], reverse=True)
print(f"with ignore_eos: {len(more['output_ids'])} tokens")
print(f"token {end}: {more['output_ids'][end]}; expected the end token, {END}")
print(f"its best tokens by the model (log probability, id): {best}")
is_forbidden = best[0][1] == END != more["output_ids"][end]
print("the end token is the best and was not taken" if is_forbidden else "the end token was taken")
raise SystemExit(is_forbidden)
