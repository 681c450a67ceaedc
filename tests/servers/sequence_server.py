"""A server with pages, a prefix cache, preemption, sleep and reload, for scripts:

`python sequence_server.py BUG...`.

Its model hashes what it reads from its pages, so a token depends on every slot it reads. Its first
line is its port. BUG is one of the words of `BUGS`; without one the server is sound. `weights=NAME`
starts it with other weights, and `port=N` on a port.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import select
import socket
import sys
import threading
import time
from collections import deque
from urllib.parse import parse_qs, urlsplit

from replies import Handler, serve  # type: ignore[import-not-found]

BUGS = {
    "hash-without-past": "a page is found by its own tokens, whatever came before it",
    "found-after-eviction": "a page that is given away is found by its old tokens",
    "kept-after-preemption": (
        "a preempted request keeps its count of computed tokens, but not its pages"
    ),
    "abort-keeps-slot": "the slot of an aborted request is handed over as it is",
    "prompt-as-decode": (
        "a fresh prompt of 1+k tokens is taken for a decode that reads its last token only"
    ),
    "garbage-on-wake": "the weights are garbage after sleep",
    "hashes-survive-sleep": "sleep empties the pages, and the prefix cache still finds them",
    "reload-keeps-half": "a reload leaves one of two tensors as it was",
    "loses-last-token": "the last token of an answer gets lost if requests run together",
    "drifts": "log probabilities change if requests run together",
    "last-bit": "log probabilities change in their last bits if requests run together",
    "dies-of-preemption": "the process ends when a request is preempted",
    "row-of-neighbour": "the fourth of four requests that run together gets the token of the third",
    "late-reads-short": (
        "a request that joins others that run does not read its first page at first"
    ),
    "alternates": "every second lone answer has another first token",
    "grammar-of-neighbour": (
        "of requests that run together each gets the grammar of the one before it"
    ),
    "adapter-of-neighbour": (
        "of requests that run together each is answered by the adapter of the first"
    ),
    "near-tie": "two tokens are equally likely; requests that run together take the second",
    "third-of-ties": "three tokens are equally likely; requests that run together take the third",
    "no-prefix-cache": "",
    "roomy": "",
    "no-metrics": "",
    "no-endpoints": "",
    "never-aborts": "",
    "no-salt": "",
    "no-scores": "",
    "no-root": "",
    "no-sizes": "",
    "llamacpp": "",
    "short": "",
    "adapters": "",
    "schemas": "",
    "ignores-schemas": "",
    "prompt-in-text": (
        "the text of an answer begins with the prompt's, if that ends inside a character"
    ),
    "refuses": "",
    "refuses-later": "",
}
GIVEN = set(sys.argv[1:])
WEIGHTS = next((word[8:] for word in GIVEN if word.startswith("weights=")), "own")
PORT = next((int(word[5:]) for word in GIVEN if word.startswith("port=")), 0)
GIVEN -= {f"weights={WEIGHTS}", f"port={PORT}"}
GIVEN |= {"adapters"} if "adapter-of-neighbour" in GIVEN else set()
GIVEN |= {"schemas"} if GIVEN & {"grammar-of-neighbour", "prompt-in-text"} else set()
assert set(BUGS) >= GIVEN, GIVEN - set(BUGS)
PAGE, NUM_PAGES, NUM_SLOTS, DRAFTS = 4, 400 if "roomy" in GIVEN else 24, 32, 3
LONGEST = 24 if "short" in GIVEN else 10**6
MODEL = {"max_model_len": LONGEST} | ({} if "no-root" in GIVEN else {"root": WEIGHTS})
ADAPTERS = ["alpha", "beta"] if "adapters" in GIVEN else []
STEP_SECONDS = 0.001
LAST_SECONDS = 0.05
"""How long requests that come together wait for the next one, so that answers of few tokens meet on
a busy machine.
"""


def tensors(name: str) -> list[int]:
    return [sum(name.encode()) * 7 + 1, sum(name.encode()) * 13 + 2]


class Request:
    def __init__(
        self,
        prompt: list[int],
        budget: int,
        salt: str,
        adapter: str = "",
        texts: tuple[str, ...] = (),
    ) -> None:
        self.adapter, self.texts = adapter, texts
        self.tokens, self.num_prompt, self.budget, self.salt = (
            list(prompt),
            len(prompt),
            budget,
            salt,
        )
        self.pages: list[int] = []
        self.computed = 0
        self.slot = -1
        self.out: queue.Queue[tuple[int, float, list[tuple[int, float]]] | None] = queue.Queue()
        self.aborted = False

    @property
    def is_done(self) -> bool:
        return (
            self.aborted
            or len(self.tokens) - self.num_prompt >= self.budget
            or self.text in self.texts
        )

    @property
    def text(self) -> str:
        """The answer. Only an answer with a schema has letters."""
        answer = self.tokens[self.num_prompt :]
        return bytes(answer).decode("latin-1") if self.texts else "?" * len(answer)

    def allowed(self) -> list[int]:
        """The tokens that the schema allows now; none without a schema."""
        end = len(self.text)
        return sorted(
            {
                ord(text[end])
                for text in self.texts
                if text.startswith(self.text) and len(text) > end
            }
        )


class Engine:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.loaded = WEIGHTS
        self.weights = tensors(WEIGHTS)
        self.slots = [[0] * PAGE for _ in range(NUM_PAGES)]
        self.refs = [0] * NUM_PAGES
        self.free = deque(range(1, NUM_PAGES))
        self.found: dict[object, int] = {}
        self.keys: dict[int, object] = {}
        self.state = [0] * NUM_SLOTS
        self.free_slots = deque(range(NUM_SLOTS))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.sleeping = False
        self.newest = 0.0
        self.flipped = False
        self.count = dict.fromkeys(
            ("prefix_cache_hits", "prefix_cache_queries", "num_preemptions", "generation_tokens"), 0
        )

    def loop(self) -> None:
        while True:
            with self.lock:
                together = len(self.waiting) + len(self.running) > 1
                if not self.sleeping and not (
                    together and time.monotonic() - self.newest < LAST_SECONDS
                ):
                    self.step()
            time.sleep(STEP_SECONDS)

    def step(self) -> None:
        for request in [r for r in self.running if r.is_done]:
            self.leave(request)
        while self.waiting and self.free_slots and self.admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        together = len(self.running) > 1
        for request in list(self.running):
            while request in self.running and not self.room(request):
                self.preempt(self.running[-1])
            if request in self.running:
                self.forward(request, together)

    def admit(self, request: Request) -> bool:
        hits = self.hits(request)
        fresh = -(-len(request.tokens) // PAGE) - len(hits)
        if fresh > len(self.free) - sum(self.refs[page] == 0 for page in hits):
            return False
        for page in hits:
            if not self.refs[page]:
                self.free.remove(page)
            self.refs[page] += 1
        if "no-prefix-cache" not in GIVEN:
            self.count["prefix_cache_queries"] += len(request.tokens)
        self.count["prefix_cache_hits"] += len(hits) * PAGE
        kept = request.computed
        request.pages, request.computed = list(hits), len(hits) * PAGE
        if kept and "kept-after-preemption" in GIVEN:
            request.computed = kept
        request.slot = self.free_slots.popleft()
        if "abort-keeps-slot" not in GIVEN:
            self.state[request.slot] = 0
        return self.room(request)

    def room(self, request: Request) -> bool:
        while len(request.pages) * PAGE < len(request.tokens):
            if not self.free:
                return False
            page = self.free.popleft()
            key = self.keys.pop(page, None)
            if "found-after-eviction" not in GIVEN:
                self.found.pop(key, None)
            self.refs[page] = 1
            request.pages.append(page)
        return True

    def key(self, request: Request, number: int) -> object:
        start = number * PAGE if "hash-without-past" in GIVEN else 0
        return request.salt, request.adapter, tuple(request.tokens[start : (number + 1) * PAGE])

    def hits(self, request: Request) -> list[int]:
        pages: list[int] = []
        if "no-prefix-cache" not in GIVEN:
            for number in range((len(request.tokens) - 1) // PAGE):
                page = self.found.get(self.key(request, number))
                if page is None:
                    break
                pages.append(page)
        return pages

    def forward(self, request: Request, together: bool) -> None:
        fresh, pages, weights = request.computed == 0, request.pages, self.weights_of(request)
        before = self.running[self.running.index(request) - 1]
        for at in range(request.computed, len(request.tokens)):
            past = self.slots[pages[(at - 1) // PAGE]][(at - 1) % PAGE] if at else 0
            self.slots[pages[at // PAGE]][at % PAGE] = hash((past, request.tokens[at], weights[0]))
            if (at + 1) % PAGE == 0 and (key := self.key(request, at // PAGE)) not in self.found:
                self.found[key] = pages[at // PAGE]
                self.keys[pages[at // PAGE]] = key
        joins = fresh and any(other.computed > other.num_prompt for other in self.running)
        request.computed = len(request.tokens)
        if "row-of-neighbour" in GIVEN and self.running.index(request) == 3:
            pages = self.running[2].pages
        read = [self.slots[page][slot] for page in pages for slot in range(PAGE)][
            : request.computed
        ]
        if "prompt-as-decode" in GIVEN and fresh and request.computed == 1 + DRAFTS:
            read = read[-1:] * 2
        if "late-reads-short" in GIVEN and joins and len(read) > PAGE:
            read = read[PAGE:]
        if "adapter-of-neighbour" in GIVEN:
            weights = self.weights_of(self.running[0])
        token, second = choice(read, weights, self.state[request.slot])
        if "alternates" in GIVEN and fresh:
            self.flipped = not self.flipped
            token, second = (second, token) if self.flipped else (token, second)
        logprob, other = -0.1, -3.0
        best = [(token, logprob), (second, other)]
        if "near-tie" in GIVEN:
            best = [(token, -0.7), (second, -0.72)]
        if "third-of-ties" in GIVEN:
            best = [(token, -1.1), (second, -1.11), (second + 1, -1.12)]
        if len({round(value) for _, value in best}) == 1 and together and request.computed % 5 == 0:
            token = best[-1][0]
        if allowed := (before if "grammar-of-neighbour" in GIVEN else request).allowed():
            # The schema excludes the best tokens. The server says how likely they are all the same.
            start = token % len(allowed)
            allowed = allowed[start:] + allowed[:start]
            is_second = "near-tie" in GIVEN and together and len(allowed) > 1
            token, likely = (allowed[1], -7.02) if is_second else (allowed[0], -7.0)
            best += [
                (number, logprob)
                for number, logprob in [(token, likely)]
                if number not in dict(best)
            ]
        logprob = dict(best)[token]
        if "drifts" in GIVEN and together:
            logprob -= 1.0
        if "last-bit" in GIVEN and together:
            logprob -= 2.0**-24
        request.tokens.append(token)
        self.count["generation_tokens"] += 1
        if not ("loses-last-token" in GIVEN and together and request.is_done):
            request.out.put((token, logprob, best))
        if request.is_done:
            self.leave(request)

    def weights_of(self, request: Request) -> list[int]:
        return tensors(request.adapter) if request.adapter else self.weights

    def leave(self, request: Request) -> None:
        self.running.remove(request)
        self.release(request)
        if request.aborted:
            self.state[request.slot] = hash(tuple(request.tokens))
        request.out.put(None)

    def release(self, request: Request) -> None:
        for page in reversed(request.pages):
            self.refs[page] -= 1
            if not self.refs[page]:
                self.free.append(page)
        request.pages = []
        self.free_slots.appendleft(request.slot)

    def preempt(self, request: Request) -> None:
        if "dies-of-preemption" in GIVEN:
            os._exit(7)
        self.count["num_preemptions"] += 1
        self.running.remove(request)
        self.release(request)
        self.waiting.appendleft(request)

    def sleep(self) -> None:
        self.sleeping = True
        self.slots = [[0] * PAGE for _ in range(NUM_PAGES)]
        if "hashes-survive-sleep" not in GIVEN:
            self.forget()

    def wake(self) -> None:
        self.sleeping = False
        if "garbage-on-wake" in GIVEN:
            self.weights = tensors("garbage")

    def forget(self) -> None:
        self.found, self.keys = {}, {}

    def reload(self, name: str | None) -> None:
        # As vLLM does: without a name, the checkpoint that was loaded last.
        self.loaded = name or self.loaded
        new = tensors(self.loaded)
        self.weights = [new[0], self.weights[1]] if "reload-keeps-half" in GIVEN else new


def choice(read: list[int], weights: list[int], state: int = 0) -> tuple[int, int]:
    """The best two tokens after the slots `read`."""
    best = hash((*read, weights[1], state)) % 200 + 20
    return best, best + 1


def scores(tokens: list[int], weights: list[int]) -> list[dict[str, dict[str, float]] | None]:
    """Log probabilities of a prompt, as a prefill without pages finds them."""
    rows: list[dict[str, dict[str, float]] | None] = [None]
    past, read = 0, []
    for token, following in itertools.pairwise(tokens):
        past = hash((past, token, weights[0]))
        read.append(past)
        best, _ = choice(read, weights)
        rows.append(
            {str(following): {"logprob": -9.0, "rank": 7}, str(best): {"logprob": -0.1, "rank": 1}}
        )
    return rows


ENGINE = Engine()
NUMBERS = itertools.count()
LLAMACPP = {
    "num_requests_running": "requests_processing",
    "num_requests_waiting": "requests_deferred",
    "prefix_cache_hits": "prompt_tokens_cached_total",
    "generation_tokens": "tokens_predicted_total",
}
"""vLLM's name of a counter -> llama.cpp's."""


class Served(Handler):
    def do_GET(self) -> None:
        with ENGINE.lock:
            if self.path == "/health":
                self.reply(200, {})
            elif self.path == "/v1/models":
                adapters = [{"id": name, "parent": "hashing"} for name in ADAPTERS]
                self.reply(200, {"data": [{"id": "hashing", "parent": None} | MODEL, *adapters]})
            elif self.path == "/is_sleeping" and "no-endpoints" not in GIVEN:
                self.reply(200, {"is_sleeping": ENGINE.sleeping})
            elif self.path == "/metrics" and "no-metrics" not in GIVEN:
                data = "\n".join(metrics()).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            elif self.path == "/props" and "llamacpp" in GIVEN:
                size = {"n_ctx": PAGE * NUM_PAGES // 2}
                self.reply(200, {"total_slots": 2, "default_generation_settings": size})
            else:
                self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        where = urlsplit(self.path)
        if where.path == "/v1/completions":
            self.complete(body)
            return
        if "no-endpoints" in GIVEN:
            self.reply(404, {"detail": "Not Found"})
            return
        with ENGINE.lock:
            if where.path == "/sleep":
                assert parse_qs(where.query)["level"][0] in "12"
                ENGINE.sleep()
            elif where.path == "/wake_up":
                ENGINE.wake()
            elif where.path == "/reset_prefix_cache":
                ENGINE.forget()
            elif where.path == "/collective_rpc" and body["method"] == "reload_weights":
                ENGINE.reload(body["kwargs"].get("weights_path"))
            else:
                self.reply(404, {"detail": "Not Found"})
                return
        self.reply(200, {"success": True})

    def complete(self, body: dict[str, object]) -> None:
        if "refuses" in GIVEN or ("refuses-later" in GIVEN and next(NUMBERS) > 60):
            self.reply(503, {"message": "the engine has ended"})
            return
        assert isinstance(body["prompt"], list) and body["temperature"] == 0.0
        assert body["ignore_eos"] != ("response_format" in body)
        if body["model"] not in ("hashing", *ADAPTERS):
            self.reply(400, {"message": "no such model"})
            return
        texts = () if "ignores-schemas" in GIVEN else texts_of(body.get("response_format"))
        if texts and "schemas" not in GIVEN:
            self.reply(400, {"message": "no structured outputs"})
            return
        adapter = "" if body["model"] == "hashing" else str(body["model"])
        salt = "" if "no-salt" in GIVEN else str(body.get("cache_salt", ""))
        if "llamacpp" in GIVEN:
            assert not salt and "prompt_logprobs" not in body
            salt = "" if body.get("cache_prompt", True) else f"alone {next(NUMBERS)}"
        if len(body["prompt"]) + int(str(body["max_tokens"])) > LONGEST + (
            "prompt_logprobs" in body
        ):
            self.reply(400, {"message": f"at most {LONGEST} tokens"})
            return
        request = Request(body["prompt"], int(str(body["max_tokens"])), salt, adapter, texts)
        if "prompt_logprobs" in body:
            assert body["max_tokens"] == 1
            found = {
                "text": "",
                "prompt_logprobs": scores(request.tokens, ENGINE.weights_of(request)),
            }
            self.reply(200, {"choices": [{} if "no-scores" in GIVEN else found]})
            return
        with ENGINE.lock:
            ENGINE.waiting.append(request)
            ENGINE.newest = time.monotonic()
        if body.get("stream"):
            self.stream(request, int(str(body["logprobs"])))
            return
        got = list(iter(request.out.get, None))
        usage = {"prompt_tokens": request.num_prompt, "completion_tokens": len(got)}
        found = logprobs(got, int(str(body["logprobs"])))
        self.reply(
            200,
            {
                "choices": [{"text": self.before(request) + request.text, "logprobs": found}],
                "usage": usage,
            },
        )

    def before(self, request: Request) -> str:
        """What stands before an answer's text by the bug of that name (vllm-project/vllm#48853)."""
        prompt = request.tokens[: request.num_prompt]
        is_cut = "prompt-in-text" in GIVEN and prompt[-1] % 2
        return "".join(map(chr, prompt)) if is_cut else ""

    def is_gone(self) -> bool:
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def stream(self, request: Request, num_best: int) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.flush()
        while True:
            try:
                item = request.out.get(timeout=0.002)
            except queue.Empty:
                item = ()  # type: ignore[assignment]
            if self.is_gone() and "never-aborts" not in GIVEN:
                request.aborted = True
                return
            if item is None:
                return
            if item:
                text = chr(item[0]) if request.texts else "?"
                chunk = {"choices": [{"text": text, "logprobs": logprobs([item], num_best)}]}
                try:
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                    self.wfile.flush()
                except OSError:
                    request.aborted = "never-aborts" not in GIVEN


def texts_of(wanted: object) -> tuple[str, ...]:
    """All answers that obey a response format; none without one."""
    if not isinstance(wanted, dict):
        return ()
    schema = wanted["json_schema"]["schema"]
    if "enum" in schema:
        return tuple(json.dumps(value) for value in schema["enum"])
    assert schema["type"] == "object" and not schema["additionalProperties"]
    parts = [
        [f"{json.dumps(name)}: {value}" for value in ("true", "false")]
        for name in schema["required"]
    ]
    return tuple(f"{{{', '.join(row)}}}" for row in itertools.product(*parts))


def metrics() -> list[str]:
    """The lines of /metrics, as vLLM names the counters or as llama.cpp does."""
    gauges = {
        "num_requests_running": len(ENGINE.running),
        "num_requests_waiting": len(ENGINE.waiting),
    }
    counts = ENGINE.count | gauges
    if "llamacpp" in GIVEN:
        known = {LLAMACPP[name]: value for name, value in counts.items() if name in LLAMACPP}
        hits = ENGINE.count["prefix_cache_hits"]
        known["prompt_tokens_total"] = ENGINE.count["prefix_cache_queries"] - hits
        return [f"llamacpp:{name} {value}" for name, value in known.items()]
    lines = [f'vllm:{name}{{engine="0"}} {float(value)}' for name, value in counts.items()]
    sizes = f'block_size="{PAGE}",num_gpu_blocks="{NUM_PAGES}"'
    if "no-sizes" not in GIVEN:
        lines.append(f"vllm:cache_config_info{{{sizes}}} 1.0")
    return ["# HELP vllm:prefix_cache_hits_total hits", *lines]


def logprobs(
    got: list[tuple[int, float, list[tuple[int, float]]]], num_best: int
) -> dict[str, object]:
    if "llamacpp" in GIVEN:
        # The end of the sequence is not chosen, and is ranked all the same.
        return {
            "content": [
                {
                    "id": token,
                    "logprob": logprob,
                    "top_logprobs": [
                        {"id": name, "logprob": value} for name, value in [(0, -0.01), *best]
                    ],
                }
                for token, logprob, best in got
            ]
        }
    return {
        "tokens": [f"token_id:{token}" for token, *_ in got],
        "token_logprobs": [logprob for _, logprob, _ in got],
        # The best of all, and the token itself.
        "top_logprobs": [
            {f"token_id:{name}": value for name, value in [*best[:num_best], (token, logprob)]}
            for token, logprob, best in got
        ],
    }


if __name__ == "__main__":
    threading.Thread(target=ENGINE.loop, daemon=True).start()
    serve(Served, PORT)
