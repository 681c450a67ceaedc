"""Trial changes: what a stranger may add to the harness, each kept as a patch."""
