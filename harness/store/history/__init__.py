"""Runs of the past: each is read from the `summary.json` in its folder."""
