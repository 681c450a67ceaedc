"""vLLM's own Python judged on a CPU: one module for each bug, run in a child process that imports vLLM."""
