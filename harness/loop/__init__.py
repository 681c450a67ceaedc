"""Judge kernels one after the other from Python, as a loop that writes kernels does."""
