"""Has `pytest --poison` in this checkout, installed or not, and approved transcripts."""

pytest_plugins = ["torch_poison.pytest_plugin", "tests.transcripts"]
