"""vLLM's own Python judged on a CPU.

One module a part, with `run(poison, params)`; a child process imports it.
"""
