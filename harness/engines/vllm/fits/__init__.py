"""Whether the harness fits a release of vLLM, judged by the text of both: nothing of vLLM is imported or run."""
