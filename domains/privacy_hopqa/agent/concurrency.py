"""Running several awaitables at once, so that none outlives the others: searches, reads, questions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def run_limited(thunks: Sequence[Callable[[], Awaitable[T]]], limit: int) -> list[T]:
    """Results in order, at most `limit` at a time.

    If one raises, the others are cancelled and awaited, and its own exception is raised.
    """
    if len(thunks) == 1 or limit == 1:
        return [await thunk() for thunk in thunks]
    slots = asyncio.Semaphore(limit)

    async def run(thunk: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await thunk()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(thunk)) for thunk in thunks]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
