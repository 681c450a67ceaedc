"""A crash is shown from its innermost frame, and the user's line is found in it."""

from __future__ import annotations

from harness.core.crash_stack import MAX_LOG, innermost, shortened, user_frame

OUTER = "".join(f'  File "/x/harness/judge/step{n}.py", line {n} in step\n' for n in range(100))
STACK = f"""Fatal Python error: Segmentation fault

Thread 0x01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1 in wait

Current thread 0x02 (most recent call first):
  File "/usr/lib/python3/dist-packages/torch/_ops.py", line 7 in __call__
  File "/home/me/my_kernel.py", line 12 in attend
{OUTER}"""


def test_a_log_is_cut_at_the_outer_end_of_its_stack() -> None:
    log = shortened("printed\n" * 5000 + STACK)
    assert len(log) <= MAX_LOG and log.startswith("printed\n") and "step99" not in log
    title, head, *frames = log.partition("Fatal")[2].splitlines()
    assert (
        "Segmentation fault" in title
        and head.startswith("Current thread")
        and "torch/_ops.py" in frames[0]
    )
    assert shortened("a" * MAX_LOG + "b") == "a" * (MAX_LOG - 1) + "b", (
        "a log without a stack keeps its end"
    )


def test_the_frame_of_the_user_is_above_torch_and_the_standard_library() -> None:
    log = shortened(STACK)
    assert user_frame(log) == "my_kernel.py:12 in attend"
    assert user_frame(log, ["/x/harness/judge/step3.py"]) == "step3.py:3 in step", "a plug-in first"
    assert innermost(log, 2)[0].endswith("torch/_ops.py:7 in __call__")
    assert user_frame("no stack here") == "" and innermost("no stack here", 3) == []
