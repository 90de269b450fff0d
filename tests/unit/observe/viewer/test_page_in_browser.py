"""The page of rollouts in headless Chromium, opened from the disk as a reader does."""

import json
from pathlib import Path

import pytest

from pipelinerl.domain import GOLD, BaseDomain, Note, NotesOf
from pipelinerl.extras.viewer.write import write_page
from pipelinerl.report import report_run
from tests.support.browser import PROGRAM, Page
from tests.support.recorded_run import FILTERED, TRAINED, recorded_run

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed"),
    pytest.mark.asyncio(loop_scope="module"),  # one browser for all of them
]
FOUND = "document.querySelector('#found').textContent"


async def opened(page: Page, name: str, view: str = "") -> None:
    """Show a rollout and wait until it is there."""
    await page.run(f"location.hash = '#{name}{view}'")
    await page.until(f"document.querySelector('#detail').dataset.shown === '{name}'")


async def test_nothing_is_asked_for_but_the_files_beside_the_page(page: Page, built: Path) -> None:
    folder = built.parent.as_uri()
    assert all(url.startswith((folder, "about:", "data:")) for url in page.requests), page.requests
    assert page.errors == []


async def test_a_script_in_an_answer_is_shown_and_does_nothing(page: Page) -> None:
    await opened(page, f"{TRAINED}/2")
    # What a reader sees: turns are rendered a frame after they are there (content-visibility).
    answer = json.dumps('</script><img src=x onerror="window.broken=1"><b>bold</b>')
    await page.until(f"document.querySelector('#detail').innerText.includes({answer})")
    assert await page.run("typeof window.broken") == "undefined"
    assert await page.run("document.querySelectorAll('#detail img, #detail .text b').length") == 0
    assert page.errors == []


@pytest.mark.parametrize(
    "hash_", ["nobody/0", "%E0%A4%A", f"{TRAINED}/1!grup", f"{TRAINED}/1!group!x", "!group"]
)
async def test_an_address_that_names_nothing_is_one_state(page: Page, hash_: str) -> None:
    """No rollout is shown and none is the current one, also when the one before still loads."""
    await opened(page, f"{TRAINED}/1")
    await page.run(f"location.hash = '#{TRAINED}/2'; location.hash = {json.dumps('#' + hash_)}")
    detail = "document.querySelector('#detail').innerText"
    await page.until(f"{detail}.includes({json.dumps(hash_ + ' is not among the rollouts of this page')})")
    await page.press("g")
    assert "is not among" in await page.run(detail) and await page.run("current.id") is None
    assert await page.run("document.querySelectorAll('#rows [aria-selected=true]').length") == 0
    assert page.errors == []
    await opened(page, f"{TRAINED}/2")


async def test_a_click_and_keys_go_through_the_list(page: Page) -> None:
    await page.click("#row-2")
    await page.until("current.id === page.shown[2].id")
    await page.press("j")
    await page.until("document.querySelector('#detail').dataset.shown === page.shown[3].id")
    await page.press("k")
    await page.until("document.querySelector('#detail').dataset.shown === page.shown[2].id")
    await opened(page, f"{TRAINED}/1")
    await page.press("g")
    await page.until("document.querySelectorAll('.grid .top').length === 4")
    assert (await page.run("location.hash")) == f"#{TRAINED}/1!group"
    await page.press("r")
    await page.until("document.querySelector('.turn')")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("fate:filtered", 3),
        ("reward<0.2 split:train", 2),
        ("-fate:filtered split:train", 4),
        ("v>=16", 2),
        ("onerror", 1),
        ('"turn 1: guess"', 6),
        ("reason:timeout", 1),
        ("nowhere", 0),
    ],
)
async def test_the_filter_finds_by_fields_and_by_words(page: Page, typed: str, found: int) -> None:
    await page.press("/")
    await page.type(typed)
    await page.until(f"page.shown.length === {found} && {FOUND}.startsWith('{found} ')")


async def test_a_filter_that_cannot_be_says_so(page: Page) -> None:
    await page.press("/")
    await page.type("colour:red")
    await page.until(
        f"document.querySelector('#found.error') && {FOUND}.startsWith('colour is no field; there are ')"
    )


async def test_keys_without_a_rollout_and_in_the_filter_do_no_harm(page: Page) -> None:
    await page.size(390, 844)
    await opened(page, f"{TRAINED}/0")
    await page.press("Escape")
    await page.until("!document.body.classList.contains('reading')")
    await page.run("current.id = null")
    for key in ("g", "v", "r", "c", "ArrowRight"):
        await page.press(key)
    await page.size(1600, 1000)
    await page.press("/")
    await page.type("gj")
    await page.press("Escape")
    assert await page.run("document.activeElement.id") == "list"
    await page.press("?")
    await page.until("document.querySelector('#help').open")
    assert page.errors == []


async def test_heads_sort(page: Page) -> None:
    await page.click("#head button:nth-child(3)")
    await page.until("page.shown[0].reward === 1")
    await page.click("#head button:nth-child(3)")
    await page.until("page.shown[0].reward === 0")


async def test_tokens_are_coloured_by_what_is_chosen(page: Page) -> None:
    await opened(page, f"{TRAINED}/0")
    colours = "[...document.querySelectorAll('.turn .t')].map(node => node.style.background)"
    seen = {}
    for name in ("lp", "ref", "version", "adv", "none"):
        await page.run(f"setColouring('{name}')")
        await page.until(
            "document.querySelector('.tools [aria-checked=true]').textContent === "
            f"COLOURS.find(one => one[0] === '{name}')[1]"
        )
        seen[name] = await page.run(colours)
    assert seen["none"] == [""] * 4
    assert seen["version"][0] != seen["version"][1]
    assert all("--hot" in colour for colour in seen["adv"])
    assert all("--cold" in colour for colour in seen["ref"])
    assert len({tuple(colours) for colours in seen.values()}) == 5


async def test_a_token_says_what_is_known_of_it(page: Page) -> None:
    await opened(page, f"{TRAINED}/0")
    await page.press("ArrowRight")
    await page.press("ArrowRight")
    said = await page.run("document.querySelector('#token').innerText.replace(/\\s+/g, ' ')")
    for part in (
        "token 2 of 2",
        "log p -0.500",
        "version 16",
        "age when trained 8 samples",
        "reference -1.000 (+0.500)",
    ):
        assert part in said
    await page.click(".turn .t")
    await page.until("document.querySelector('#token').innerText.includes('log p -0.250')")


async def test_a_group_without_signal_says_so(page: Page) -> None:
    await opened(page, f"{FILTERED}/0", "!group")
    await page.until("document.querySelector('.hint')?.textContent.startsWith('No signal')")


async def test_versions_of_a_problem_stand_side_by_side(page: Page) -> None:
    await page.click("#side-tabs button:nth-child(2)")
    await page.until("document.querySelector('#found').textContent === '2 problems: 1 won, 0 lost, 1 alike'")
    await page.run("[...document.querySelectorAll('#rows .row')].at(-1).click()")
    await page.until("document.querySelectorAll('.grid .top').length === 3")
    assert "+0.500" in await page.run("document.querySelector('#detail .facts').innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1600])
async def test_the_page_fits_a_telephone_and_a_wall(page: Page, width: int, scheme: str) -> None:
    await page.size(width, 844, scheme)  # type: ignore[arg-type]
    await opened(page, f"{TRAINED}/2")
    assert await page.run("document.documentElement.scrollWidth <= innerWidth")
    assert await page.run("getComputedStyle(document.querySelector('#detail')).display") != "none"
    if width == 390:
        assert await page.run("getComputedStyle(document.querySelector('#side')).display") == "none"
        await page.click("#back")
        await page.until("getComputedStyle(document.querySelector('#side')).display !== 'none'")
    ground = await page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark")


@pytest.mark.parametrize("width", [900, 1280])
async def test_the_list_does_not_lie_over_the_rollout(page: Page, width: int) -> None:
    await page.size(width, 844)
    await opened(page, f"{TRAINED}/2")
    for part in ("#side", "#head", "#list"):
        assert await page.run(f"(e => e.scrollWidth <= e.clientWidth)(document.querySelector('{part}'))"), (
            part
        )


@pytest.mark.parametrize("width", [390, 1600])
async def test_the_page_lands_on_the_largest_advantage_and_lists_question_and_success(
    page: Page, built: Path, width: int
) -> None:
    await page.size(width, 844)
    await page.open("about:blank")
    await page.open(built.as_uri())
    await page.until("document.querySelector('#row-0')")
    assert await page.run("page.shown[0].advantage") == 0.5
    assert await page.run("page.rows.every(row => !(row.advantage > 0.5))")
    row = await page.run("document.querySelector('#row-0').innerText")
    assert "turn 0: guess 1-100" in row and "✓" in row and "trained" in row
    if width == 1600:
        assert (await page.run("current.id")) == await page.run("page.shown[0].id")


async def test_a_badge_stands_beside_the_fate_and_the_answer_beside_gold(page: Page, tmp_path: Path) -> None:
    class Judges(BaseDomain):
        def rollout_notes(self, output_dir: Path) -> NotesOf:
            said = [Note(text="too low", kind="verdict", badge="too low", level="bad")]
            return lambda _name, _records: [*said, Note(text="51", kind=GOLD)]

    await page.open(write_page(recorded_run(tmp_path / "run"), Judges()).as_uri())
    await opened(page, f"{FILTERED}/0")
    at = await page.run(f"page.shown.findIndex(row => row.id === '{FILTERED}/0')")
    row = await page.run(f"document.querySelector('#row-{at}').innerText")
    assert "filtered: zero_advantage" in row and "too low" in row
    labels = "[...document.querySelectorAll('.beside > div')].map(node => node.innerText.split('\\n'))"
    assert await page.run(labels) == [["answer", "50"], ["gold", "51"]]


async def test_the_versions_of_two_runs_are_compared(page: Page, tmp_path: Path, built: Path) -> None:
    other = recorded_run(tmp_path / "other")
    both = write_page(built.parents[2], compare=other, folder=tmp_path / "page")
    await page.open(both.as_uri())
    await page.until("document.querySelector('.turn .t')")
    await opened(page, "0-eval16-0/0", "!versions")
    await page.until("document.querySelectorAll('.grid .top').length === 5")
    assert "other" in await page.run("document.querySelector('#title').textContent")


async def test_an_address_of_another_page_says_so(page: Page) -> None:
    await page.run("location.hash = '#0-999999/0'")
    await page.until(
        "document.querySelector('#detail').innerText.includes('is not among the rollouts of this page')"
    )


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`index.html` of the recorded run's report."""
    return report_run(recorded_run(tmp_path_factory.mktemp("reported") / "run")) / "index.html"


@pytest.mark.parametrize("width", [390, 1600])
async def test_the_report_is_a_page_that_fits_and_leads_to_the_rollouts(
    page: Page, reported: Path, width: int
) -> None:
    await page.size(width, 844, "dark")
    await page.open(reported.as_uri())
    await page.run("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    assert await page.run("document.documentElement.scrollWidth <= innerWidth")
    cut = "[...document.querySelectorAll('section *')].filter(node => node.scrollWidth > node.clientWidth + 1"
    assert width > 390 or await page.run(f"{cut} && node.clientWidth).map(node => node.outerHTML)") == []
    assert await page.run("[...document.images].every(image => image.naturalWidth > 0)")
    await page.click(".open")
    await page.until("location.pathname.endsWith('rollouts/index.html') && document.querySelector('#title')")
    assert page.errors == []


async def test_a_hash_that_is_no_uri_is_no_error(page: Page) -> None:
    await page.run("location.hash = '#100%/0'")
    await page.until("document.querySelector('#detail').innerText.includes('is not among the rollouts')")
    assert page.errors == []
