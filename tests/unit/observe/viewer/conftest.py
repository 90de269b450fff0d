import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pipelinerl.extras.viewer.write import write_page
from tests.support.browser import Page, open_browser
from tests.support.recorded_run import recorded_run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`index.html` of the recorded run."""
    return write_page(recorded_run(tmp_path_factory.mktemp("run") / "recorded"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab() -> AsyncIterator[Page]:
    """A browser of the module's own."""
    async with open_browser() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def page(built: Path, tab: Page) -> Page:
    """The page in a browser, opened anew, with a rollout on it."""
    tab.requests.clear()
    tab.errors.clear()
    await tab.size(1600, 1000)
    await tab.open(built.as_uri())
    await tab.until("document.querySelector('.turn .t')")
    return tab


def index_of(path: Path) -> dict[str, Any]:
    """What `index.js` tells the page; its rows as dicts."""
    said: dict[str, Any] = json.loads((path.parent / "index.js").read_text()[len("page.index(") : -3])
    said["rows"] = [dict(zip(said["columns"], row, strict=True)) for row in said["rows"]]
    return said


def chunk_of(path: Path, number: int = 0) -> dict[str, Any]:
    """What a chunk tells the page."""
    text = (path.parent / f"chunk_{number}.js").read_text()
    found: dict[str, Any] = json.loads(text.partition(",")[2][:-3])
    return found
