"""Kernels under test: the built-in ones in torch, and how to bring your own."""
