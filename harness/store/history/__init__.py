"""The results of all runs in one SQLite file: written after each run, read by `history`, `compare` and the reports."""
