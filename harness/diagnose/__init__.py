"""Diagnosis of failures: the memory to blame, the first NaN, the smallest case, scripts for
upstream.
"""
