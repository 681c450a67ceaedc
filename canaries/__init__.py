"""Tiny checkpoints that answer fixed questions almost perfectly: corrupted inference costs
accuracy.
"""
