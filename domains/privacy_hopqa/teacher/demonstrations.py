"""Demonstrations of the scripted model in generated worlds; the domain's hooks give them to the bootstrap."""

import random
from typing import cast, get_args

from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.privacy_hopqa.teacher.adversary import adversary_demonstrations
from domains.privacy_hopqa.teacher.inprocess import simulate
from domains.privacy_hopqa.teacher.script import MIXTURES, Phase, ScriptedModel
from domains.privacy_hopqa.world import World, build, chains_of, world_config, world_store
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

ADVERSARY = "adversary"
FIRST_TRAINING_SEED = 1_000_000
CHAINS_PER_WORLD = 60


def training_world(seed: int) -> World:
    """A small world of its own for each seed; its companies and pages never occur in a run's worlds."""
    return build(
        world_config(
            "custom",
            seed=FIRST_TRAINING_SEED + seed,
            companies=2,
            test_companies=0,
            private_docs=24 + 14 * (seed % 5),
            web_docs=150 + 60 * (seed % 4),
            train_chains=CHAINS_PER_WORLD,
            val_chains=0,
            test_chains=0,
            long_fraction=0.01,
        ),
        checks=False,
    )


def demonstrations(settings: PrivacyHopQASettings, seed: int, phase: str) -> list[Demonstration]:
    """The distinct demonstrations of one world, one rollout a chain. Raises ValueError for another phase."""
    if phase not in (phases := (*get_args(Phase), ADVERSARY)):
        raise ValueError(f"bootstrap phase {phase!r} is unknown; allowed: {', '.join(phases)}")
    world = training_world(seed)
    if phase == ADVERSARY:
        drawn = random.Random(f"{seed}:{phase}")
        return list(dict.fromkeys(adversary_demonstrations(world, settings, drawn)))
    store, mixture = world_store(world), MIXTURES[settings.prompt_set]
    made: dict[Demonstration, None] = {}
    for index, chain in enumerate(chains_of(world, "train")):
        drawn = random.Random(f"{seed}:{index}:{phase}")
        model = ScriptedModel(chain, cast(Phase, phase), drawn, settings.prompt_set, mixture)
        simulate(chain, store, settings, model)
        made.update(dict.fromkeys(model.recorded))
    return list(made)
