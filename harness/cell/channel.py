"""A connection between a judge and a cell: messages with their length in front."""

from __future__ import annotations

import math
import socket
import struct
import time

_LENGTH = struct.Struct("!I")
MOST_BYTES = 16 << 20


class Channel:
    """One end of a connection. A message is bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError if the other end is gone."""
        self._connection.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, seconds: float = math.inf) -> bytes | None:
        """The next message; None if the other end is gone, or sends no message.

        Raises TimeoutError if it is not there whole after `seconds`.
        """
        end = time.monotonic() + seconds
        head = self._exactly(_LENGTH.size, end)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        # A kernel can write to the connection itself. A length that it made up must not fill our
        # memory.
        return self._exactly(length, end) if length <= MOST_BYTES else None

    def _exactly(self, count: int, end: float) -> bytes | None:
        found = bytearray()
        while len(found) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            # A kernel may send byte by byte, each in time.
            self._connection.settimeout(None if left == math.inf else left)
            try:
                part = self._connection.recv(min(count - len(found), 1 << 16))
            except ConnectionError:
                return None
            if not part:
                return None
            found += part
        return bytes(found)

    def close(self) -> None:
        self._connection.close()
