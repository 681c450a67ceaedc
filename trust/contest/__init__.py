"""A contest's check beside ours: the figures of docs/data/why-not-0.1.md."""
