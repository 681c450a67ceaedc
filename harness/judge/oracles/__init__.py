"""Oracles, each a small file, and the comparator and tolerance table that they share."""
