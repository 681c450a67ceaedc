"""Oracles, a file for each kind, and the comparator and tolerance table that they share."""
