"""An embedded engine, and OpenAI's own client of it, imported by tests that need it: it takes 0.7 s."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.engine_harness import RunningEngine, running_engine

if TYPE_CHECKING:
    import openai


@asynccontextmanager
async def asked(folder: Path, **settings: Any) -> AsyncIterator[tuple[RunningEngine, "openai.AsyncOpenAI"]]:
    import openai

    async with (
        running_engine(folder, **settings) as engine,
        openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        yield engine, client
