"""Conditions: the classes in which calls of an op differ, and which of them go together.

No torch here.
"""
