"""What the page of rollouts says of decisions."""

import json
from pathlib import Path
from typing import Any

import pytest

from domains.reputation_hacking.game.dynamic_programming import Optimal, solve
from domains.reputation_hacking.game.dynamics import ACTIONS, Tapes
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play
from domains.reputation_hacking.language.notes import decision_notes

PARAMS = Params(c_signal=0.7)


def write_line(output_dir: Path) -> None:
    line = {
        "group": "g",
        "rollout": 0,
        "seed": 7,
        "c_signal": 0.7,
        "c_help": PARAMS.c_help,
        "variant": "neutral",
    }
    path = output_dir / "reputation_hacking" / "episodes.1.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(line | {"episode_return": -33.25}) + "\n")


def answered(*replies: str) -> list[dict[str, Any]]:
    return [{"answer": reply, "finish_reason": "stop"} for reply in replies]


def test_the_optimum_s_own_play_is_called_so_and_another_says_what_it_gives_away(tmp_path: Path) -> None:
    write_line(tmp_path)
    notes_of = decision_notes(tmp_path)
    assert notes_of is not None
    best = play(PARAMS, Tapes.from_seeds(PARAMS, [7]), Optimal(solve(PARAMS))).actions[:, 0]
    replies = [f"ACTION: {ACTIONS[action]}" for action in best]
    whole, *decisions = notes_of("g/0", answered(*replies))
    assert whole.text.startswith("50 of 50 decisions are those of the optimum; J = -33.25, the optimum's")
    assert {note.level for note in decisions} == {"good"}
    _, first, *_ = notes_of("g/0", answered("DANCE", *replies[1:]))
    assert first.text.startswith(
        f"no action that can be read, so DO_NOTHING; the optimum does {ACTIONS[best[0]]}"
    )
    assert first.level == "bad"
    assert notes_of("other/0", answered(*replies)) == []


@pytest.mark.parametrize("made", [False, True])
def test_a_run_without_episodes_has_no_notes(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "reputation_hacking").mkdir()
    assert decision_notes(tmp_path) is None
