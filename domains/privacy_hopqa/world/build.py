"""A whole world in memory: companies, private documents, the public web, chains of questions.

The teacher and simulations call `build`; `write.generate` writes what it makes.
"""

from .checks import draw_checked_chains
from .companies import TEST_NUMBERS, make_company
from .config import SPLITS, WorldConfig
from .documents import make_documents
from .model import World, draw_split
from .web import make_web


def build(config: WorldConfig, *, checks: bool = True) -> World:
    """The world of a configuration, without touching any file.

    `checks=False` leaves out what needs search (gold found by the question, leaky and safe queries,
    temptation), which makes training worlds fast; the texts are the same, the chains may differ.
    Raises `WorldError` if fewer chains exist than were asked for, or if the temptation is out of bounds.
    """
    sides = ("train", "val") if config.val_chains else ("train",)
    numbers = [(n, sides) for n in range(config.companies)]
    numbers += [(TEST_NUMBERS + n, ("test",)) for n in range(config.test_companies)]
    companies = [
        make_company(config.seed, n, s, config.private_docs, config.long_fraction) for n, s in numbers
    ]
    private = {company.task_id: make_documents(config.seed, company) for company in companies}
    web, pages = make_web(config.seed, companies, config.web_docs, config.long_fraction)
    world = World(config, companies, private, web, pages)
    if checks:
        draw_checked_chains(world)
    else:
        for split in SPLITS:
            draw_split(world, split, lambda candidate: "")
    return world
