"""A page in headless Chromium, driven over the DevTools protocol: for tests of pages and for screenshots.

Chromium is a Debian package (`chromium`); tests of pages are skipped where it is missing.
"""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Literal

import aiohttp

from tests.support.processes import bound

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DEADLINE_S = 120.0
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--font-render-hinting=none", "--remote-debugging-port=0"),
    "--allow-pre-commit-input",  # else keys and clicks before the first frame of a page are dropped
)
_KEY_TEXT = {"Enter": "\r"}
_A_FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_LEFT = ("navigated", "context was destroyed", "Cannot find context")


class PageLeft(AssertionError):
    """The page that was asked made place for another one."""


class Page:
    """One tab. `requests` has the address of everything that it asked for, `errors` what went wrong."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._session = socket, ""
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = defaultdict[str, asyncio.Event](asyncio.Event)
        """By the id of a load, so that a page that was left is not taken for the next one."""
        self.requests: list[str] = []
        self.errors: list[str] = []

    async def open(self, address: str) -> None:
        """Load a page anew and wait until it has been read."""
        for url in (
            "about:blank",
            address,
        ):  # in between, or an address that differs in its # only is not read
            said = await self.call("Page.navigate", url=url)
            assert "errorText" not in said, f"{url}: {said['errorText']}"
            async with asyncio.timeout(DEADLINE_S):
                await self._loaded[said["loaderId"]].wait()

    async def size(self, width: int, height: int, scheme: Literal["light", "dark"] = "light") -> None:
        """The window in CSS pixels, and what the reader prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def run(self, expression: str) -> Any:
        """The value of an expression in the page. Raises AssertionError with what it threw."""
        said = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true, on whatever page comes. Raises AssertionError at the deadline."""
        waits = f"""new Promise(done => {{
            const look = () => ({expression}) ? done(true) : setTimeout(look, 10);
            look();
        }})"""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    with contextlib.suppress(PageLeft):
                        await self.run(waits)
                        return
        except TimeoutError:
            raise AssertionError(f"not true after {DEADLINE_S:g} s: {expression}; {self.errors}") from None

    async def press(self, key: str) -> None:
        """A key by its DOM name, or a character."""
        text = _KEY_TEXT.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            given = {"type": kind, "key": key} | ({"text": text} if text and kind == "keyDown" else {})
            await self.call("Input.dispatchKeyEvent", **given)

    async def type(self, text: str) -> None:
        for character in text:
            await self.press(character)

    async def click(self, selector: str) -> None:
        """Click in the middle of the first element that matches, with the mouse."""
        await self.run(_A_FRAME)  # what has not been rendered is neither in its place nor hit
        where = f"document.querySelector({selector!r}).getBoundingClientRect()"
        x, y = await self.run(
            f"(r => [r.x + Math.min(r.width, 200) / 2, r.y + Math.min(r.height, 200) / 2])({where})"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def screenshot(self) -> bytes:
        """The window as a PNG."""
        shot = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol. Raises AssertionError with the browser's complaint, or PageLeft."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        async with asyncio.timeout(DEADLINE_S):
            said = await self._answers[number]
        if "error" in said:
            left = any(words in str(said["error"]) for words in _LEFT)
            raise (PageLeft if left else AssertionError)(f"{method}: {said['error']}")
        return said["result"]

    async def begin(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)

    async def listen(self) -> None:
        """Take in answers and events until the browser ends."""
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Page.lifecycleEvent" and said["params"]["name"] == "load":
                self._loaded[said["params"]["loaderId"]].set()
            elif said["method"] == "Network.requestWillBeSent":
                self.requests.append(said["params"]["request"]["url"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(said["params"]["entry"]["text"])


async def _address(stderr: asyncio.StreamReader) -> str:
    async with asyncio.timeout(DEADLINE_S):
        async for line in stderr:
            if b"DevTools listening on " in line:
                return line.decode().split("listening on ")[1].strip()
    raise AssertionError("chromium ended before it listened")


@contextlib.asynccontextmanager
async def open_browser() -> AsyncIterator[Page]:
    """A browser with an empty tab; it has no profile and is ended with its processes."""
    assert PROGRAM is not None, "install chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *bound(PROGRAM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert process.stderr is not None
            address = await _address(process.stderr)
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(address, max_msg_size=0) as socket,
            ):
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                try:
                    await page.begin()
                    yield page
                finally:
                    listening.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
