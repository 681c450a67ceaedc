"""Edits of the reference engine that a person may make: wrong ones, which a case must catch, and
right ones, which no value oracle may blame.
"""
