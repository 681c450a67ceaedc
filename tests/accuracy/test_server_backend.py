from __future__ import annotations

import gc
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy import server_backend
from harness.accuracy.backends import Answer
from harness.accuracy.server_backend import ServerBackend, ServerGone
from harness.core.errors import InputError
from tests.conftest import StartProcess
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

PROGRAM = Path(__file__).parents[1] / "servers" / "completion_server.py"


class Server:
    """The server process: its address, and the attempts that it saw."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"

    def stop(self) -> list[dict[str, Any]]:
        if self.process.poll() is not None:
            return []
        self.process.kill()
        attempts, _ = self.process.communicate()
        return [json.loads(line) for line in attempts.splitlines()]


@pytest.fixture
def serve(start_process: StartProcess) -> Callable[..., Server]:
    def start(**script: list[str]) -> Server:
        return Server(start_process([sys.executable, str(PROGRAM), json.dumps(script)]))

    return start


def ask(server: Server, prompts: list[str], **settings: Any) -> list[Answer]:
    backend = ServerBackend(
        server.url, **({"backoff": 0.01, "timeout": HANG_SECONDS, "concurrency": 4} | settings)
    )
    return backend.generate(prompts, max_tokens=16, stop=["Question:"])


def test_a_drop_a_500_and_an_empty_answer_in_the_middle_are_all_made_good(
    serve: Callable[..., Server],
) -> None:
    server = serve(q3=["drop"], q5=["500", "429"], q9=["empty"], q11=["garbage"])
    answers = ask(server, [f"q{i}x {i}" for i in range(14)])
    assert [answer.text for answer in answers] == [f" answer {i}" for i in range(14)]
    assert [answer.num_attempts for answer in answers] == [1, 1, 1, 2, 1, 3, 1, 1, 1, 2, 1, 2, 1, 1]
    assert not any(answer.unanswered for answer in answers)
    attempts = server.stop()
    assert len(attempts) == 19
    assert attempts[0]["body"] == {
        "model": "toy",
        "prompt": attempts[0]["prompt"],
        "max_tokens": 16,
        "temperature": 0.0,
        "stop": ["Question:"],
    }


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("drop", "connection lost: RemoteProtocolError (3 attempts)"),
        ("500", "HTTP 500 (3 attempts)"),
        ("429", "HTTP 429 (3 attempts)"),
        ("empty", "empty answer (3 attempts)"),
        ("garbage", "the reply is no completion (3 attempts)"),
    ],
)
def test_what_stays_broken_is_unanswered_with_its_reason_and_hurts_no_other_question(
    serve: Callable[..., Server], deed: str, reason: str
) -> None:
    answers = ask(serve(q1=[deed] * 9), ["q0 0", "q1 1", "q2 2"], max_attempts=3)
    assert (answers[1].text, answers[1].unanswered, answers[1].num_attempts) == ("", reason, 3)
    assert [answers[0].text, answers[2].text] == [" answer 0", " answer 2"]


def test_a_server_that_hangs_is_left_at_the_time_limit(
    serve: Callable[..., Server], approved: Approved
) -> None:
    # The model is named: the limit is for the question alone, which never ends.
    (answer,) = ask(
        serve(q0=["hang"] * 2), ["q0 0"], served_model="toy", timeout=0.4, max_attempts=2
    )
    approved(answer.unanswered)


def test_a_list_of_models_that_does_not_end_says_so_and_what_needs_no_list(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise server_backend.BadReply("the reply does not end in time")

    monkeypatch.setattr(server_backend, "fetched", late)
    with approved.raises(InputError):
        ServerBackend("http://127.0.0.1:9999/v1")


def test_a_question_that_was_late_is_asked_again(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    late, in_time = {"q0 0": 1, "q1 1": 2}, server_backend.fetched_async

    async def fetched(*words: Any, seconds: float, json: Any, **more: Any) -> Any:
        # No answer arrives in no time at all, however quick the machine is.
        late[json["prompt"]] -= 1
        return await in_time(
            *words, seconds=0.0 if late[json["prompt"]] >= 0 else HANG_SECONDS, json=json, **more
        )

    monkeypatch.setattr(server_backend, "fetched_async", fetched)
    answers = ask(serve(), ["q0 0", "q1 1"], max_attempts=2)
    assert (answers[0].text, answers[0].num_attempts) == (" answer 0", 2)
    approved(answers[1].unanswered)


def test_a_refused_question_is_not_asked_again(serve: Callable[..., Server]) -> None:
    server = serve(q0=["400"])
    (answer,) = ask(server, ["q0 0"])
    assert answer.unanswered is not None and answer.unanswered.startswith("HTTP 400: ")
    assert len(server.stop()) == 1


def test_the_wait_between_attempts_doubles(serve: Callable[..., Server]) -> None:
    server = serve(q0=["500"] * 4)
    ask(server, ["q0 0"], backoff=0.2)
    at = [attempt["at"] for attempt in server.stop()]
    waits = [later - earlier for earlier, later in itertools.pairwise(at)]
    for attempt, wait in enumerate(waits):
        # Half of the pause is random, and the machine may add to it.
        assert wait >= 0.2 * 2**attempt * 0.5


def test_each_answer_is_reported_as_soon_as_it_is_there(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    seen: list[int] = []

    def note(position: int, answer: Answer) -> None:
        seen.append(position)
        if len(seen) == 2:
            (tmp_path / "go").touch()

    backend = ServerBackend(serve(q0=[f"until {tmp_path / 'go'}"]).url, backoff=0.01, concurrency=2)
    backend.generate(["q0 0", "q1 1", "q2 2"], max_tokens=4, stop=[], on_answer=note)
    assert sorted(seen) == [0, 1, 2] and seen[-1] == 0


def test_a_server_that_is_gone_ends_the_run_instead_of_counting_wrong_answers(
    serve: Callable[..., Server],
    approved: Approved,
) -> None:
    server = serve()
    backend = ServerBackend(server.url, backoff=0.01, max_attempts=3, concurrency=4)
    server.stop()
    counted: list[int] = []
    with approved.raises(ServerGone):
        backend.generate(
            [f"q {i}" for i in range(50)],
            max_tokens=4,
            stop=[],
            on_answer=lambda i, answer: counted.append(i),
        )
    assert counted == []


def test_a_wrong_path_is_an_input_error_at_once(serve: Callable[..., Server]) -> None:
    with pytest.raises(InputError, match="HTTP 404: "):
        ask(serve(q0=["404"]), ["q0 0"])


def test_no_server_no_scheme_and_no_model_are_input_errors(
    serve: Callable[..., Server], approved: Approved
) -> None:
    server = serve()
    server.stop()
    with approved.raises(InputError):
        ServerBackend(server.url)
    with approved.raises(InputError):
        ServerBackend("localhost:8000")


def test_a_name_that_no_request_can_carry_is_an_input_error(
    start_server: Callable[..., str],
) -> None:
    url = start_server("hostile_server.py", "surrogate", "models")
    with pytest.raises(InputError, match="lists no model"):
        ServerBackend(url)


def test_ctrl_c_neither_waits_for_the_attempts_in_flight_nor_leaves_their_exceptions(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    def stop(position: int, answer: Answer) -> None:
        raise KeyboardInterrupt

    backend = ServerBackend(serve(q0=["hang"]).url, timeout=2 * HANG_SECONDS)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        backend.generate(["q0 0", "q1 1"], max_tokens=4, stop=[], on_answer=stop)
    assert time.monotonic() - started < HANG_SECONDS
    gc.collect()  # asyncio reports an exception that was not retrieved when its task is deleted
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_log_probabilities_are_asked_for_and_those_that_are_none_are_left_out(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    (answer,) = ask(server, ["q1x 1"], logprobs=True)
    assert answer.tokens == (" answer", " to", " it")
    assert answer.logprobs == (-0.5, None, None)
    assert [one["body"]["logprobs"] for one in server.stop()] == [1]


@pytest.mark.parametrize(
    "sent",
    [None, [], {"tokens": ["a"]}, {"tokens": ["a"], "token_logprobs": []}, {"tokens": 3}],
)
def test_an_answer_whose_log_probabilities_cannot_be_read_is_an_answer(sent: Any) -> None:
    reply = {"choices": [{"text": "yes", "logprobs": sent}]}
    answer = server_backend.answer_in(reply, [], 16)
    assert (answer.text, answer.tokens, answer.logprobs) == ("yes", (), ())
