"""Checks by text whether the harness fits a release of vLLM. Nothing of vLLM is imported or run."""
