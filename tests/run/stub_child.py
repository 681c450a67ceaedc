"""A child process that does what its request says: `python -m stub_child`."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from pathlib import Path

from harness.core.errors import HarnessError, InputError
from harness.core.files import write_atomic
from harness.core.params import Record
from harness.run.child import Child
from harness.run.protocol import Parent, Reply, run_child

COLLECTS_AT_IMPORT = gc.isenabled()


class Do(Record):
    what: str
    text: str = ""


def main(parent: Parent) -> None:
    for do in parent.requests(Do):
        if do.what == "print":
            print(do.text, flush=True)
            print("on standard error", file=sys.stderr)
        elif do.what == "progress":
            parent.reply(Reply(progress={"done": 1}))
        elif do.what == "nan":
            parent.reply(Reply(result={"value": float("nan")}))
        elif do.what == "refuse":
            raise InputError("no such\nthing")
        elif do.what == "fail":
            raise HarnessError("the server is gone")
        elif do.what == "raise":
            raise ValueError("not foreseen")
        elif do.what == "sys_exit":
            sys.exit(5)
        elif do.what == "exit":
            os._exit(7)
        elif do.what == "segfault":
            print("the last words", flush=True)
            ctypes.string_at(0)
        elif do.what == "abort_late":
            parent.reply(Reply(result={}))
            os.kill(os.getpid(), signal.SIGTERM)
        elif do.what == "close_replies":
            os.closerange(3, 256)
            time.sleep(3600)
        elif do.what == "garble":
            for descriptor in range(3, 256):
                try:
                    os.write(descriptor, b"garbage\n")
                except OSError:
                    continue
            time.sleep(3600)
        elif do.what == "hang":
            print("before the hang", flush=True)
            if os.fork():
                write_atomic(Path(do.text), str(os.getpid()))
            time.sleep(3600)
        elif do.what == "read_input":
            parent.reply(Reply(result={"read": sys.stdin.read()}))
        elif do.what == "own_child":
            child = Child("stub_child", name="the child's child")
            child.send(Do(what="pid"))
            parent.reply(child.receive())
            time.sleep(3600)
        elif do.what == "environ":
            parent.reply(Reply(result={"value": os.environ.get(do.text)}))
        elif do.what == "garbage":
            found = {"at_import": COLLECTS_AT_IMPORT, "now": gc.isenabled()}
            parent.reply(Reply(result=found | {"kept": gc.get_freeze_count() > 0}))
        elif do.what == "pid":
            parent.reply(Reply(result={"pid": os.getpid()}))
        parent.reply(Reply(result={"arguments": sys.argv[1:]}))


if __name__ == "__main__":
    run_child(main)
