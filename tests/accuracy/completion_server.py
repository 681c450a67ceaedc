"""A small OpenAI-compatible server, run as a process of its own: `python completion_server.py SCRIPT.json`.

The script maps a text found in the prompt to the misdeeds of its first attempts, in order: `drop`, `500`, `429`,
`400`, `slow`, `empty`, `garbage`, `hang`. Later attempts are answered with `answer N` for a prompt ending in `N`.
Each attempt is printed as a line; the first line is the port.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPT: dict[str, list[str]] = json.loads(sys.argv[1])
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "toy"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["prompt"]
        with LOCK:
            key = next((key for key in SCRIPT if key in prompt), None)
            deed = SCRIPT[key].pop(0) if key and SCRIPT[key] else "answer"
            print(json.dumps({"prompt": prompt, "deed": deed, "body": body, "at": time.monotonic()}), flush=True)
        self._do(deed, prompt)

    def _do(self, deed: str, prompt: str) -> None:
        if deed == "drop":
            # A reset, in the middle of an answer that promised more.
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if deed.isdigit():
            return self._json(int(deed), {"error": f"scripted {deed}"})
        if deed == "garbage":
            return self._json(200, {"nothing": True})
        if deed in ("slow", "hang"):
            time.sleep(0.5 if deed == "slow" else 5.0)
        text = "" if deed == "empty" else f" answer {prompt.split()[-1]}Question: more"
        self._json(200, {"choices": [{"text": text, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}})

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
