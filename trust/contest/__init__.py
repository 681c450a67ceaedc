"""A contest's check beside ours: the figures of docs/why-not-0.1.md."""
