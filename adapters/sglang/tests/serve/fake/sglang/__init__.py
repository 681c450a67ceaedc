"""A stand-in for SGLang: a scheduler process that runs one pass for each batch, and answers by a
table.

It answers wrong where a live value that came out is not finite, and dies or refuses as the
environment asks.
"""

__version__ = "0.5.14"
