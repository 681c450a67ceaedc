"""A model of the stand-in."""
