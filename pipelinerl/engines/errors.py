"""How a request to an engine may fail: raised by `client` and `fleet`, told apart by who may try again."""


class EngineError(RuntimeError):
    """A request that got no usable answer; `engine` is the URL."""

    def __init__(self, engine: str, message: str) -> None:
        super().__init__(f"{engine}: {message}")
        self.engine = engine


class EngineRequestError(EngineError):
    """The engine refused the request (4xx): asking again cannot help."""

    def __init__(self, engine: str, status: int, message: str) -> None:
        super().__init__(engine, f"HTTP {status}: {message}")
        self.status = status


class EngineUnavailable(EngineError):
    """The engine could not answer; the request may be made again elsewhere, from the prompt.

    `reason` is one of connection, timeout, busy, server_error, stalled, invalid_answer, no_engine.
    """

    def __init__(self, engine: str, reason: str, message: str) -> None:
        super().__init__(engine, f"{reason}: {message}")
        self.reason = reason


class AbortedCompletion(EngineError):
    """The engine ended the request early or returned no token: not data, ask again."""
