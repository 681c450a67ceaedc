"""The child of `mla-harness canary train`."""

from __future__ import annotations

from harness.canary.train import train
from harness.core.errors import InputError
from harness.run.protocol import Parent, Reply, run_child
from harness.run.requests import TrainCanary


def main(parent: Parent) -> None:
    """Train; each line of progress is a reply. Raises InputError for bad input."""
    request = parent.request(TrainCanary)
    if request is None:
        return
    try:
        train(**request.model_dump(), progress=lambda line: parent.reply(Reply(progress={"line": line})))
    except ValueError as error:
        raise InputError(f"canary train: {error}") from error
    parent.reply(Reply(result={}))


if __name__ == "__main__":
    run_child(main)
