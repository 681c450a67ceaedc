"""Checks whether the harness fits a release of vLLM, by the text of both. Nothing of vLLM is imported or run."""
