"""Judges of what a case produced, each a small file, and the one comparator and tolerance table they share."""
