"""What is made of a probe's questions around the answers of one step."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from benchmarks._ending import Asked, Probe, ending_of


def test_a_process_began_on_the_answers_when_it_left_a_question_waiting() -> None:
    asked = [Asked(1.0, 1.002, 4.0), Asked(1.1, 1.596, 4.5), Asked(1.65, 1.7, 5.0)]
    found = ending_of(asked, [1.60, 1.61, 1.62], cpu_s=5.1)
    assert (found.answers, round(found.seconds, 6), round(found.spread_s, 6)) == (3, 0.52, 0.02)
    assert round(found.cpu_s, 6) == 0.6


def test_a_question_asked_after_the_first_answer_waited_for_no_answer() -> None:
    found = ending_of([Asked(1.0, 1.001, 4.0), Asked(1.7, 1.8, 5.0)], [1.60, 1.62], cpu_s=4.9)
    assert round(found.seconds, 6) == 0.02 and found.cpu_s == 0.0


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_probe_asks_after_the_last_answer_too() -> None:
    """However late its thread runs, one question is answered behind the answers."""
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Probe(f"http://127.0.0.1:{server.server_port}", lambda: 4.0) as probe:
            answered = time.monotonic()
        server.shutdown()
    assert ending_of(probe.asked, [answered], cpu_s=4.5).cpu_s == 0.5
