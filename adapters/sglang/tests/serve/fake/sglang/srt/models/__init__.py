"""A part of the stand-in."""
