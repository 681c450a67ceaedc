"""Has `pytest --poison` in this checkout, installed or not, approved transcripts, and nightly parameters."""

pytest_plugins = ["torch_poison.pytest_plugin", "tests.transcripts", "tests.nightly"]
