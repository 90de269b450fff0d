"""One connection to a redis server. Whatever goes wrong is a StreamError that names the address.

A request may be sent now and its answer fetched later: a reader leaves a blocking read at the server, and the
descriptor of its connection becomes readable when a record comes.
"""

import threading
from typing import Any

from pipelinerl.streams.errors import StreamError, WrongPassword
from pipelinerl.streams.wakeup import readable

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise StreamError(
        "streams.backend=redis: the redis client is not installed; pip install 'pipelinerl[redis]'"
    ) from error

CONNECT_DEADLINE_S = 5.0
ANSWER_DEADLINE_S = 20.0
_READ_BYTES = 1 << 20


class Refused(StreamError):
    """The server answered with an error; `code` is its first word."""

    def __init__(self, address: str, answer: str) -> None:
        self.code = answer.partition(" ")[0]
        super().__init__(f"redis at {address} refuses: {answer}")


class RedisLink:
    """`call` may be used by several threads; `send`, `receive` and `readable` by one."""

    def __init__(
        self, host: str, port: int, password: str | None = None, client_name: str | None = None
    ) -> None:
        self.address = f"{host}:{port}"
        self._lock = threading.Lock()
        self._connection = redis.Connection(
            host=host,
            port=port,
            password=password,
            client_name=client_name,
            socket_connect_timeout=CONNECT_DEADLINE_S,
            socket_timeout=ANSWER_DEADLINE_S,
            # A second try could write a record twice; the run ends and is resumed instead.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            socket_read_size=_READ_BYTES,
        )
        try:
            self._connection.connect()
        except redis.RedisError as error:
            raise self._failure(error) from error

    @property
    def descriptor(self) -> int:
        return int(self._connection._sock.fileno())  # the client has no public name for it

    def call(self, *words: Any) -> Any:
        """The answer to one command. Raises Refused for an error that the server reports."""
        with self._lock:
            self.send(*words)
            return self.receive()

    def send(self, *words: Any) -> None:
        try:
            self._connection.send_command(*words)
        except (redis.RedisError, OSError) as error:
            raise self._failure(error) from error

    def receive(self) -> Any:
        """The answer to what was sent first; waits for it at most ANSWER_DEADLINE_S."""
        try:
            return self._connection.read_response()
        except (redis.RedisError, OSError) as error:
            raise self._failure(error) from error

    def readable(self, timeout_s: float) -> bool:
        return readable([self.descriptor], timeout_s)

    def _failure(self, error: Exception) -> StreamError:
        if isinstance(error, redis.AuthenticationError):
            return WrongPassword(f"redis at {self.address} wants another password; set streams.password")
        if isinstance(error, redis.TimeoutError):
            return StreamError(f"redis at {self.address} gave no answer for {ANSWER_DEADLINE_S:g} s")
        if isinstance(error, redis.ResponseError):
            return Refused(self.address, str(error))
        return StreamError(f"redis at {self.address} cannot be reached: {error}")

    def close(self) -> None:
        self._connection.disconnect()
