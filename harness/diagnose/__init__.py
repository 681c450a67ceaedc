"""The second pass: which memory was to blame."""
