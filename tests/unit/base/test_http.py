"""Small HTTP calls: what is sent, and what becomes of every other answer than 200."""

import threading
from typing import Any

import pytest

from pipelinerl.base.http import CallFailed, Connection, call, get_or_none
from tests.support.json_server import serving_json


def test_a_call_gives_the_body_or_says_why_not() -> None:
    asked: list[tuple[str, str, Any]] = []

    def answer(path: str, query: str, body: Any) -> tuple[int, Any]:
        asked.append((path, query, body))
        return (503, "two\nlines") if path == "/busy" else (200, "fine")

    with serving_json(answer) as url:
        assert call("POST", f"{url}/", "/a", 5.0, {"b": 1}) == b"fine"
        assert get_or_none(f"{url}/c?d=e", 5.0) == get_or_none(url, 5.0, {"f": 2}) == b"fine"
        assert asked == [("/a", "", {"b": 1}), ("/c", "d=e", None), ("/", "", {"f": 2})]
        with pytest.raises(CallFailed, match=r"^HTTP 503: two lines$"):
            call("GET", url, "/busy", 5.0)
        assert get_or_none(f"{url}/busy", 5.0) is None
    with pytest.raises(CallFailed, match="ConnectionRefusedError") as error:
        call("GET", url, "/a", 5.0)
    assert error.value.status is None and get_or_none(f"{url}/a", 5.0) is None


def test_a_call_that_hangs_ends_at_its_deadline_or_when_it_is_cut() -> None:
    entered, released = threading.Event(), threading.Event()

    def answer(path: str, query: str, body: Any) -> tuple[int, Any]:
        entered.set()
        released.wait(100)
        return 200, "late"

    with serving_json(answer) as url:
        connection = Connection(url)
        with pytest.raises(CallFailed, match=r"GET /a: no answer within 0\.1 s"):
            connection.call("GET", "/a", 0.1)
        entered.clear()
        threading.Thread(target=lambda: (entered.wait(100), connection.cut())).start()
        with pytest.raises(CallFailed, match="GET /b: given up"):
            connection.call("GET", "/b", 100.0)
        connection.close()
        released.set()
