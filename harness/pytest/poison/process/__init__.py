"""The part of a poisoned pytest run that needs torch: fill memory, watch assertions, judge
tests.
"""
