"""Kernels that cheat, and a table of what `mla-harness judge` says of each."""
