"""An engine of one kernel, as another package may bring it to the harness."""
