"""What the scripted servers beside this file share; each is run as a process of its own."""

from __future__ import annotations

import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Replies in JSON, and can drop a connection in the middle of one.

    A connection is good for one request. vLLM, SGLang and llama.cpp close one that was idle for
    five seconds, and a request that was sent in that moment gets no answer.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    num_requests = 0

    def parse_request(self) -> bool:
        self.num_requests += 1
        if self.num_requests > 1:
            self.close_connection = True
            return False
        return super().parse_request()

    def log_message(self, *args: object) -> None:
        pass

    def reply(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def drop(self) -> None:
        """A reset, in the middle of an answer that promised more."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    """A thread for each connection. A client that is killed ends its own in silence."""

    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def serve(handler: type[Handler], port: int = 0) -> None:
    """Print the port and serve until killed."""
    server = Server(("127.0.0.1", port), handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
