"""The process of a kernel under judgement, which is trusted with nothing.

A judge draws inputs, computes what is expected, and compares. The kernel runs in a *cell*: a
process that has torch, the file of the kernel and the bytes of its inputs, and nothing of the
judge. It never holds an expected value, a tolerance or an oracle, so no code in it can read or
replace them.

`server` forks a cell for each connection. `inside` is what runs in the cell, `walls` what is kept
from it, `arena` how tensors cross, and `client` the judge's side. Only bytes and JSON come back.
"""
