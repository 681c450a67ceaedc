"""Proposed cures: what they are called, how people write their own, and how one is put in place."""
