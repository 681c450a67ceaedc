"""Has `pytest --poison` in this checkout, installed or not."""

pytest_plugins = ["torch_poison.pytest_plugin"]
