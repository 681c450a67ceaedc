"""Kernels under test: the built-in ones in torch, and what it takes to bring one's own."""
