"""A failing case as a script of its own: for an issue upstream, without this project."""
