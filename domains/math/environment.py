"""The verifier as an environment: a server that the launcher starts, or a pool inside the worker."""

from domains.math.pool import VerifierPool
from domains.math.service import make_app
from domains.pool import DEADLINE_S, MEMORY_MB
from domains.verdict_server import serve


class MathEnvironment:
    """`_target_` of `environment`; its arguments are those of `VerifierPool`.

    With `world.environment_mode=embedded` no server is started and rollouts verify in their own process.
    """

    def __init__(
        self,
        workers: int = 4,
        deadline_s: float = DEADLINE_S,
        memory_mb: int = MEMORY_MB,
        host: str = "127.0.0.1",
    ) -> None:
        """`host` is the address that the server listens at."""
        self.workers, self.deadline_s, self.memory_mb, self.host = workers, deadline_s, memory_mb, host

    def pool(self) -> VerifierPool:
        """A pool with these settings."""
        return VerifierPool(self.workers, self.deadline_s, self.memory_mb)

    def launch(self, port: int) -> None:
        """Serve until the process is stopped."""
        serve(make_app(self.pool()), self.host, port)
