"""Holds a rollout to a deadline of its domain; called by rollouts of domains that can hang by themselves.

`actor.rollout_deadline_s` holds for every rollout. A domain that talks to services or plays a game gives up
before that, so that the failure names the domain's key.
"""

import asyncio
from collections.abc import Awaitable

from pipelinerl.rollouts import RolloutResult


async def within(limit_s: float, key: str, rollout: Awaitable[RolloutResult]) -> RolloutResult:
    """The rollout's result, or a failed one that names `key` if `limit_s` seconds passed.

    Raises what the rollout raises, an engine's own TimeoutError too, which the scheduler may retry.
    """
    deadline = asyncio.timeout(limit_s)
    try:
        async with deadline:
            return await rollout
    except TimeoutError:
        if not deadline.expired():
            raise
        return RolloutResult(training_texts=[], failed=f"timeout: {key}={limit_s:g} passed")
