"""vLLM under the harness: its poison plug-in, faults as patches of its source, and the process that serves a case."""
