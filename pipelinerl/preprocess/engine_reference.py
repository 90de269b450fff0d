"""Log-probabilities under a frozen model, reference or teacher, that inference engines serve. No torch here.

Engines score prompts at temperature 1, so this is for policies that sample at temperature 1.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence

import aiohttp
import numpy as np

from pipelinerl.base.waits import Wait
from pipelinerl.engines.client import AbortedCompletion, EngineClient, EngineRequestError, EngineUnavailable
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.rollouts import MASKED_TOKEN_ID

log = logging.getLogger(__name__)
RETRY_S = 0.25


class EngineReference:
    """Scores samples on the engines in turn, at most `n_workers` at a time per engine."""

    def __init__(
        self,
        urls: Sequence[str],
        deadline_s: float,
        n_workers: int = 8,
        wait: str = "reference log-probabilities from the engines",
    ) -> None:
        """`wait` is what a deadline that passes is called."""
        self._urls, self._deadline_s, self._n_workers = tuple(urls), deadline_s, n_workers
        self._wait = wait

    def score(self, samples: Sequence[Sample]) -> list[np.ndarray | None]:
        """float32 `[labels]` per sample, or None for one that the engine refuses (it fills the context).

        A label on the first token, which nothing predicts, gets 0. Raises WaitExpired when no engine answers
        until the deadline.
        """
        return asyncio.run(self._score_all(samples))

    async def _score_all(self, samples: Sequence[Sample]) -> list[np.ndarray | None]:
        limit = asyncio.Semaphore(self._n_workers * len(self._urls))
        async with aiohttp.ClientSession() as session:
            clients = [EngineClient(url, session) for url in self._urls]
            with Wait(self._wait, self._deadline_s) as wait:

                async def one(at: int, sample: Sample) -> np.ndarray | None:
                    async with limit:
                        return await _score(sample, clients[at % len(clients) :] + clients, wait)

                return list(await asyncio.gather(*(one(at, sample) for at, sample in enumerate(samples))))


async def _score(sample: Sample, clients: Sequence[EngineClient], wait: Wait) -> np.ndarray | None:
    for client in itertools.cycle(clients):
        try:
            async with asyncio.timeout(max(wait.remaining_s, RETRY_S)):
                scores = await client.prompt_logprobs(sample.input_ids)
            return np.concatenate([np.zeros(1, np.float32), scores])[sample.labels != MASKED_TOKEN_ID]
        except EngineRequestError as error:
            log.warning("sample %s is not scored: %s", sample.name, error)
            return None
        except (EngineUnavailable, AbortedCompletion, TimeoutError) as error:
            wait.check(str(error))
            await asyncio.sleep(RETRY_S)
    raise AssertionError("the cycle of engines does not end")
