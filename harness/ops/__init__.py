"""The ops: each is a folder, see README.md."""
