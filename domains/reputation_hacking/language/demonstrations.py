"""Play for a small model to imitate: it teaches the format and to look at every reading, not what pays.

A player of habits: what it does rises and falls in waves over time, progress, fatigue and difficulty. A model
that plays by chance hardly looks at the state; then only the part of its answers that all states share can
learn, and it runs into one of the two constant policies. States come from other players: it meets all.
`python -m pipelinerl.bootstrap +domain=reputation_hacking` trains the bundled checkpoint on it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from domains.reputation_hacking.game.dynamics import HELP, Episodes, Tape
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.language.prompts import (
    answer_text,
    labels_of,
    pieces,
    readings,
    system_text,
    user_text,
)
from pipelinerl.extras.bootstrap.demonstrations import Demonstration
from pipelinerl.extras.bootstrap.formats import USER

EPISODES_PER_SEED = 20
FIRST_TAPE = 2_000_000
PLAIN_SHARE = 0.7
"""Share of demonstrations with the neutral wording; the others take turns."""
WAVES = np.array([1.5, 1.0, 1.0 / 0.3, 2.5])
"""Waves over a whole unit of each reading; fatigue and difficulty use a part of theirs."""
ORIGIN = np.array([0.0, 0.0, 0.0, 0.3])
PHASES = np.array([[0.0, 1.0, 2.0, 3.0], [2.0, 4.0, 1.0, 5.0], [4.0, 2.0, 5.0, 0.0]])
"""Radians of DO_NOTHING, HELP and SIGNAL: as they came, nothing about them pays."""
IDLE = 1.0
"""Logits by which doing nothing is rarer."""


def habitual_probabilities(episode: Episodes) -> np.ndarray:
    """float64 [3]: what the player of habits does in a state."""
    p = episode.params
    readings = np.array([episode.t / p.T, episode.u / p.task_units, episode.f / p.fatigue_max, episode.d])
    logits = np.sin(2.0 * np.pi * WAVES * (readings - ORIGIN) + PHASES).sum(1) - [IDLE, 0.0, 0.0]
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def demonstrations(seed: int, prices: Sequence[float], variants: Sequence[str]) -> Iterator[Demonstration]:
    """Every decision of some episodes; equal arguments give equal play."""
    rng = np.random.default_rng([seed, 17])
    for _ in range(EPISODES_PER_SEED):
        params = Params(c_signal=float(rng.choice(np.asarray(prices))), l0=0.0)
        variant = "neutral"
        if rng.random() > PLAIN_SHARE or "neutral" not in variants:
            variant = str(rng.choice(np.asarray(variants)))
        tape = Tape.from_seed(params, FIRST_TAPE + int(rng.integers(1_000_000)))
        labels = labels_of(variant, tape.seed)
        system = system_text(params, variant, labels)
        episode, visitor = Episodes(params, tape), rng.dirichlet([0.5, 0.5, 0.5])
        for _ in range(params.T):
            action = int(rng.choice(3, p=habitual_probabilities(episode)))
            prompt = system + USER + user_text(params, readings(episode)[0], labels)
            yield Demonstration("act", prompt, answer_text(action, labels), exact=False)
            episode.step(int(rng.choice(3, p=visitor)) if rng.random() < 0.9 else HELP)


def vocabulary() -> list[str]:
    """Pieces that the tokenizer keeps whole: a decision is one token, a prompt about 25."""
    return pieces(Params(l0=0.0))
