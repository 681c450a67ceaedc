"""A connector that stores and loads rows of tokens, on streams of its own.

See docs/memory-moves.md.

mla-harness run offload-connector --scenarios docs/examples --plugin
docs/examples/offload_connector.py
"""

from harness.engine.moves.host import HostTier, connector

ROW_TOKENS = 4
"""Tokens that one descriptor moves."""


@connector("rows")
class RowConnector(HostTier):
    """Each block is moved in descriptors of ROW_TOKENS tokens."""

    def waits(self, stream):
        """Stores wait for the step that writes, loads for the steps that may still read: one event
        for both.
        """
        return [self.streams.record(self.server.compute)]

    def copies(self, target, source, rows, length, used):
        """Descriptors (source, target, bytes) of one block, counted from the start of each buffer.

        `source` and `target` are regions: one group of one layer of one rank. `rows` are the two
        blocks.
        """
        start, end = source.start(rows[0]), target.start(rows[1])
        if source.group == "state":
            yield target.piece(source, start, end, source.page_bytes)
            return
        size = ROW_TOKENS * source.token_bytes
        for first in range(0, min(used, source.tokens), ROW_TOKENS):
            offset = first * source.token_bytes
            yield target.piece(source, start + offset, end + offset, size)


@connector("rows-too-early")
class EarlyConnector(RowConnector):
    """The same without an event: it stores what is not written, and overwrites what is read."""

    def waits(self, stream):
        """Nothing."""
        return []
