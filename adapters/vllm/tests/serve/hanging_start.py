"""A server over two ranks that never starts: rank 1 waits for multicast, and rank 0 for rank 1."""

import sys
import time

# The time limit begins with the request. On a busy machine a process is ready before that is sent.
sys.stdin.readline()
print("(Worker_TP1 pid=7) INFO 11-25 14:20:00 [cuda.py:4] building trtllm_mnnvl_comm", flush=True)
print("(Worker_TP0 pid=6) INFO 11-25 14:20:01 [pynccl.py:7] vLLM is using nccl", flush=True)
time.sleep(3600)
