"""The plug-in by the name of this package, for `-p harness.pytest.plugin` and `pytest_plugins` in a
checkout.
"""

pytest_plugins = ["mla_harness_pytest"]
