"""The pictures of the page of rollouts: `python -m docs.screenshots RUN`, the folder of a quickstart.

Headless Chromium opens the page of the run, shows a rollout of training in which a web query gives a private
answer away, and is photographed light and dark, on a wide window and on a telephone.
"""

import asyncio
import io
import sys
from pathlib import Path

from PIL import Image

from pipelinerl.view import main as view
from tests.support.browser import Page, open_browser

DOCS = Path(__file__).parent
SIZES = {1600: 1000, 390: 844}
SHOW = """(async () => {
    let best = null;
    for (const row of page.rows.filter(row => row.split === 'train' && row.badge === 'answer leaked')) {
        const { turns, notes } = await rolloutOf(row);
        const note = notes.find(note => note.turn !== null && note.level === 'bad');
        const shown = note.turn < 3 && turns[note.turn].adv && turns[note.turn].prompt.length < 300;
        // The query should be in sight below the question: little text before it, then one that lost by it.
        const above = turns.slice(0, note.turn + 1).reduce((sum, turn) => sum + turn.prompt.length, 0);
        const place = above + (turns[note.turn].adv < 0 ? 0 : 600);
        if (shown && (!best || place < best.place)) best = { row, place, turn: note.turn };
    }
    setColouring('lp');
    history.replaceState(null, '', `#${best.row.id}`);
    document.body.classList.add('reading');
    await show(best.row, 'rollout');
    pointAt(document.querySelectorAll(`#turn-${best.turn} .t`)[2]);
    if (innerWidth > 600) document.querySelector(`#turn-${best.turn}`).scrollIntoView({ block: 'nearest' });
})()"""


async def photograph(page: Page, address: str) -> None:
    """One picture for each size and scheme."""
    for width, height in SIZES.items():
        for scheme in ("light", "dark"):
            await page.size(width, height, scheme)
            await page.open(address)
            await page.until("page.rows.length && page.shown.length")
            await page.run(SHOW)
            await asyncio.sleep(0.5)  # what lies outside the window is laid out when it comes into sight
            picture = Image.open(io.BytesIO(await page.screenshot())).convert("RGB")
            path = DOCS / f"rollouts_{width}_{scheme}.png"
            picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
            print(path)


async def main(run: Path) -> None:
    async with open_browser() as page:
        await photograph(page, run.as_uri())


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if view([str(folder)]) != 0:
        sys.exit(1)
    asyncio.run(main(folder / "report" / "rollouts" / "index.html"))
