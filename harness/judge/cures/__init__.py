"""Proposed cures: the files of users, and the application of cures."""
