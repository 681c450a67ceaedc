"""The part of a poisoned pytest run that needs torch: what fills memory, watches assertions, and judges a test."""
