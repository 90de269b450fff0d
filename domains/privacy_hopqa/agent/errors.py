"""What can go wrong in a rollout, for the loop and the rollout policy to tell apart.

Kinds are set where an error is raised, never guessed from its message.
"""

from enum import StrEnum


class ErrorKind(StrEnum):
    """Every error of a rollout is counted under one of these."""

    PARSE = "parse"
    WRONG_TYPE = "wrong_type"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_IDS = "invalid_ids"
    RESOLVER_WIPE = "resolver_wipe"
    SEARCH_FAILED = "search_failed"
    TRANSPORT = "transport"
    PRIVACY_SCORE = "privacy_score"


class StageError(Exception):
    """A model's answer (or a prompt that leaves no room for one) that a stage cannot use."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SearchActionError(Exception):
    """One search failed for good and only for itself: refused (4xx) or answered with a malformed hit.

    `of_request`: what was asked for is at fault, such as a query that is too long, and not the service.
    """

    def __init__(self, message: str, of_request: bool = False) -> None:
        super().__init__(message)
        self.of_request = of_request


class RolloutFailure(Exception):
    """The rollout cannot go on for reasons outside the policy: no texts, counted as failed under `reason`."""

    reason: str


class TransportFailure(RolloutFailure):
    """A service could not be reached after all retries."""

    reason = ErrorKind.TRANSPORT


class SearchFailure(RolloutFailure):
    """The service refused every search of one source: what is missing there is no fault of the policy."""

    reason = ErrorKind.SEARCH_FAILED


class PrivacyScoreFailure(RolloutFailure):
    """The privacy scorer answered with a missing, extra or impossible score."""

    reason = ErrorKind.PRIVACY_SCORE


class AuditFailure(RolloutFailure):
    """The outbound-query log cannot be written, so no web request may leave."""

    reason = "audit"
