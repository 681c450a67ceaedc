"""A server that serves one model and refuses text completions:

`python closed_server.py key|chat|nothing`.

`key` wants the key `right`, also for the list of models. `chat` knows chat only. `nothing` has
neither. Its first line is its port.
"""

from __future__ import annotations

import sys

from replies import Handler, serve  # type: ignore[import-not-found]

KIND = sys.argv[1]


class Closed(Handler):
    def do_GET(self) -> None:
        is_open = KIND != "key" or self.headers.get("authorization") == "Bearer right"
        self.reply(*((200, {"data": [{"id": "toy"}]}) if is_open else (401, {"error": "no"})))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if KIND == "key":
            self.reply(403, {"error": "no"})
        elif KIND == "chat" and self.path.endswith("/chat/completions"):
            self.reply(200, {"choices": [{"message": {"content": "hi"}}]})
        else:
            self.reply(404, {"detail": "Not Found"})


if __name__ == "__main__":
    serve(Closed)
