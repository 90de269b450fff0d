"""An HTTP server whose answers are a function: path, query and JSON body in, status and content out."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, str, Any], tuple[int, Any]]
"""Status 0 closes the connection without an answer; content that is a text is sent as it is."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A publisher that gives up closes its connection; that is no error of the server."""


@contextmanager
def serving_json(answer: Answer) -> Iterator[str]:
    """The server's URL; connections are kept open between requests, as vLLM does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
            status, content = answer(path, query, body)
            if not status:
                self.close_connection = True
                return
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
