"""Has `pytest --poison` in this checkout, installed or not."""

pytest_plugins = ["harness.pytest.plugin"]
