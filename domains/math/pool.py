"""The verifier in worker processes; the server and rollouts without one ask it."""

from domains.math.answers import MAX_PREDICTION_LENGTH, compare, extracted, quick_status, stated
from domains.math.rewards import AnswerStatus
from domains.pool import DEADLINE_S, MEMORY_MB, JudgePool

MAX_GOLD_LENGTH = 20_000


class VerifierPool(JudgePool):
    """Verifies answers for one event loop; an async context manager.

    `deadline_s` is for one comparison once a worker has it. An answer that takes longer, needs more than
    `memory_mb` or brings its worker down is `unparsable`. `counts` has answers by status too.
    """

    def __init__(self, workers: int = 4, deadline_s: float = DEADLINE_S, memory_mb: int = MEMORY_MB) -> None:
        super().__init__(
            compare,
            ("1", "1"),
            ("math_verify",),
            workers=workers,
            deadline_s=deadline_s,
            memory_mb=memory_mb,
        )

    async def verify(
        self,
        prediction: str,
        gold: str,
        strict: bool = True,
        max_prediction_length: int = MAX_PREDICTION_LENGTH,
    ) -> AnswerStatus:
        """Status of the last boxed answer. Raises ValueError for a gold answer too long to compare."""
        gold = stated(gold)
        if len(gold) > MAX_GOLD_LENGTH:
            raise ValueError(
                f"the gold answer has {len(gold)} characters; at most {MAX_GOLD_LENGTH} are compared"
            )
        answer = extracted(prediction, max_prediction_length)
        status = None
        if answer not in ("no_answer", "unparsable"):
            status = quick_status(answer, gold) or await self.ask(answer, gold, strict) or "unparsable"
        found: AnswerStatus = status or answer  # type: ignore[assignment]
        self.counts[found] += 1
        return found
