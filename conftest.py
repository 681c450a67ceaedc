"""Makes `pytest scenarios/` collect the scenarios of this checkout, installed or not."""

pytest_plugins = ["harness.pytest.plugin"]
