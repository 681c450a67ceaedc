"""Kernels with an error planted on purpose, and right ones with unusual choices, beside the cases
that judge them.
"""
