"""Has `pytest --poison` in this checkout, approved transcripts, and parameters for the night."""

pytest_plugins = ["torch_poison.pytest_plugin", "tests.transcripts", "tests.nightly"]
