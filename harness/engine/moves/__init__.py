"""Engines that move their cache: a host tier, and a prefill engine that hands its pages to a decode
engine.
"""
