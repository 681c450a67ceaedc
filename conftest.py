"""What every test of this checkout has.

`pytest --poison`, approved transcripts, parameters that are for the night, and draws without a
clock.
"""

pytest_plugins = ["torch_poison.pytest_plugin", "tests.transcripts", "tests.nightly", "tests.drawn"]
