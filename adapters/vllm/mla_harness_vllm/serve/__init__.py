"""vLLM under the harness: the plug-in in its workers, and the process that serves a case."""
