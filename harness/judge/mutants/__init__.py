"""Mutants: small changes of the engine and the built-in kernels, made in a worker's memory to try the oracles."""
