"""Proposed cures: how people write their own, and how a cure is applied."""
