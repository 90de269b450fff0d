"""An embedded engine, and OpenAI's own client of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from tests.support.engine_harness import RunningEngine, running_engine


@asynccontextmanager
async def asked(folder: Path, **settings: Any) -> AsyncIterator[tuple[RunningEngine, openai.AsyncOpenAI]]:
    async with (
        running_engine(folder, **settings) as engine,
        openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        yield engine, client
