"""An OpenAI-compatible server that can add, run as a process of its own: `python sum_server.py SCRIPT DELAY`.

SCRIPT is JSON: a number -> what becomes of the attempts at "What is N + N?", one word an attempt: `drop`, `500`,
`empty`, `wrong`, `slow`; when they are used up, or without any, the answer is right. `always:WORD` never runs out.
Its first line is its port.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPT: dict[str, list[str]] = json.loads(sys.argv[1])
DELAY = float(sys.argv[2])
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "adder"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = re.search(r"What is (\d+) \+", body["prompt"])
        number = found[1] if found else "0"
        with LOCK:
            left = SCRIPT.get(number, [])
            deed = "right" if not left else left[0][7:] if left[0].startswith("always:") else left.pop(0)
        time.sleep(DELAY + (0.5 if deed == "slow" else 0.0))
        if deed == "drop":
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif deed.isdigit():
            self._json(int(deed), {"error": "scripted"})
        else:
            answer = 2 * int(number) + (deed == "wrong")
            text = "" if deed == "empty" else f" That is {answer}.\n#### {answer}"
            self._json(200, {"choices": [{"text": text, "finish_reason": "stop"}], "usage": {"completion_tokens": 4}})

    def _json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
