"""The engine: starts the scheduler as a process, and hands it the prompts."""

import multiprocessing as mp
import os
import time
from types import SimpleNamespace

from sglang.srt.managers.scheduler import run_scheduler_process


class Engine:
    run_scheduler_process_func = staticmethod(run_scheduler_process)

    def __init__(self, **options):
        how = os.environ.get("FAKE_SGLANG")
        if how == "refuse":
            raise ValueError("this backend takes\n no graphs")
        if how == "unknown":
            raise TypeError(
                "ServerArgs.__init__() got an unexpected keyword argument 'enable_mixed_chunk'"
            )
        if how == "hang":
            time.sleep(3600)
        mp.set_start_method(os.environ.get("FAKE_SGLANG_START", "spawn"), force=True)
        self._ours, theirs = mp.Pipe()
        self._process = mp.Process(target=self.run_scheduler_process_func, args=(options, theirs))
        self._process.start()
        theirs.close()
        if self._ours.recv() != "ready":
            raise RuntimeError("Scheduler process died")
        self.server_args = SimpleNamespace(kv_cache_dtype=options["kv_cache_dtype"])
        self.tokenizer_manager = SimpleNamespace(
            model_config=SimpleNamespace(vocab_size=2048, dtype="torch.bfloat16")
        )

    def generate(self, prompt, sampling_params, return_logprob):
        assert return_logprob
        self._ours.send(prompt)
        while not self._ours.poll(0.1) or os.environ.get("FAKE_SGLANG") == "leak":
            time.sleep(0.1)
        return self._ours.recv()

    def collective_rpc(self, method):
        self._ours.send(method)
        assert self._ours.recv() == "done"

    def shutdown(self):
        self._process.kill()
