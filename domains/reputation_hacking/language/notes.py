"""What the page of rollouts says of this domain: each decision beside that of the optimum in the same state.

The page has the answers of an episode and its line in `episodes.*.jsonl` the seed of its tape, so the episode
is played again and the optimum, which also knows what the prompt hides, is asked before every step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from domains.reputation_hacking.game.dynamic_programming import Optimal, solve
from domains.reputation_hacking.game.dynamics import ACTIONS, DO_NOTHING, HELP, Episodes, Tapes
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play, returns
from domains.reputation_hacking.language.log import read_episodes
from domains.reputation_hacking.language.prompts import labels_of, parse_action
from pipelinerl.domain import Note, NotesOf

Record = Mapping[str, Any]
_NEEDED = ("seed", "c_signal", "c_help", "variant", "episode_return")
_WORTH = 0.005
"""A smaller difference is less than the tables of the optimum resolve."""


def decision_notes(output_dir: Path) -> NotesOf | None:
    """Notes for the episodes that the run recorded; None without any. Raises DamagedLine."""
    episodes = {
        f"{line['group']}/{line['rollout']}": {key: line[key] for key in _NEEDED}
        for line in read_episodes(output_dir)
    }

    def notes_of(rollout: str, records: Sequence[Record]) -> list[Note]:
        line = episodes.get(rollout)
        return [] if line is None else _notes(line, records)

    return notes_of if episodes else None


def _notes(line: Mapping[str, Any], records: Sequence[Record]) -> list[Note]:
    """A note for each decision, behind one for the whole episode."""
    params = Params(c_signal=line["c_signal"], c_help=line["c_help"])
    labels = labels_of(line["variant"], line["seed"])
    tapes, optimal = Tapes.from_seeds(params, [line["seed"]]), Optimal(solve(params))
    episode, notes, same = Episodes(params, tapes), list[Note](), 0
    for turn, record in enumerate(records):
        cut = record["finish_reason"] == "length"
        action = parse_action(record["answer"], labels, cut=cut)
        best = int(optimal.act(episode, episode.observation())[0])
        taken = DO_NOTHING if action is None else action
        worth = abs(float(optimal.help_advantage(episode)[0])) if HELP in (best, taken) else None
        working = bool(episode.working[0])
        same += taken == best
        notes.append(_decision(turn, action, taken, best, worth, working))
        episode.step(np.array([taken]))
    found = float(returns(play(params, tapes, optimal))[0])
    text = (
        f"{same} of {len(records)} decisions are those of the optimum; "
        f"J = {line['episode_return']:.2f}, the optimum's on the same tape {found:.2f}"
    )
    return [Note(text=text, kind="optimum", level="info"), *notes]


def _decision(
    turn: int, action: int | None, taken: int, best: int, worth: float | None, working: bool
) -> Note:
    said = ACTIONS[taken] if action is not None else f"no action that can be read, so {ACTIONS[taken]}"
    if not working and HELP in (best, taken):
        worth = None  # to help a resting Worker changes nothing but the price
    if taken == best:
        text, level = f"{said}, as the optimum", "good"
    elif worth is not None and worth < _WORTH:
        text, level = f"{said}; the optimum is as good with {ACTIONS[best]}", "info"
    else:
        costs = "" if worth is None else f", worth {worth:.3f} more"
        text, level = f"{said}; the optimum does {ACTIONS[best]}{costs}", "bad"
    return Note(text=text, kind="decision", turn=turn, level=level)  # type: ignore[arg-type]
