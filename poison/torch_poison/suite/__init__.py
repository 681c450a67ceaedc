"""Any pytest suite under poison: `pytest --poison nan`. See docs/poison-pytest.md."""
