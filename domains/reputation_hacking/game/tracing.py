"""`debug_trace.jsonl`: every step of a few episodes, for people who want to see what happened.

Training, evaluation and an environment made with `trace=` hand over their episodes. One is replayed from its
noise and actions, which gives the same numbers bit for bit, so that nothing has to be recorded while
thousands are played.
"""

import fcntl
import json
from pathlib import Path
from typing import Any

from domains.reputation_hacking.game.dynamics import ACTIONS, HELP, SIGNAL, Episodes, Tape, Tapes
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.terminal import row
from pipelinerl.base.closing import Closing

TRACE_MAX_MB = 5.0
"""Default limit of a trace."""
END_MARK = 64
"""Bytes kept free for the line that says the trace was cut."""


class Tracer(Closing):
    """One buffered, exclusive handle on a trace of limited size; a limit of 0 means no file.

    Raises ValueError where another process writes the same trace.
    """

    def __init__(self, path: Path, max_mb: float, *, append: bool = False) -> None:
        self.limit = int(max_mb * 1_000_000)
        self.full = self.limit <= 0
        self._file = None
        if self.full:
            return
        self._file = path.open("a", encoding="utf-8", buffering=1 << 16)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ValueError(
                f"{path}: another process or environment writes this trace; end it or choose another place"
            ) from None
        if not append:
            self._file.truncate(0)
        self._bytes = path.stat().st_size
        self.full = self._bytes + END_MARK >= self.limit

    def meta(self, **values: Any) -> None:
        """The line that opens a run."""
        self._write(json.dumps({"kind": "meta", **values}) + "\n")

    def episode(
        self, episodes: Episodes, info: dict[str, Any], index: int, number: int, **labels: Any
    ) -> None:
        """The steps of finished episode `index`, the last with the terminal info."""
        terminal = row(info, index)
        tape, actions = episodes.tape, episodes.actions
        if isinstance(tape, Tapes):
            tape, actions = tape.one(index), actions[:, index]
        expected = terminal["learned_expected_effort_before"]
        self.steps(episodes.params, tape, actions.tolist(), expected, number, terminal, **labels)

    def steps(
        self,
        params: Params,
        tape: Tape,
        actions: list[int],
        expected: float,
        number: int,
        terminal: dict[str, Any] | None = None,
        **labels: Any,
    ) -> None:
        """The steps of one episode; without `terminal` it was left before its end. A full trace takes none.

        `expected`: effort that the Worker expected before it.
        """
        if self.full:
            return
        steps = step_lines(Episodes(params, tape), actions, expected)
        if terminal is not None:
            steps[-1] |= {"reward": terminal["reward_raw"], "info": terminal}
        common = {"kind": "step", "episode": number, **labels}
        self._write("".join(json.dumps({**common, **step}) + "\n" for step in steps))

    def _write(self, text: str) -> None:
        if self._file is None or self.full:
            return
        if self._bytes + len(text) + END_MARK > self.limit:
            text, self.full = json.dumps({"kind": "truncated"}) + "\n", True
        self._bytes += len(text)
        self._file.write(text)

    def flush(self) -> None:
        """Hand everything to the system, for whoever reads along."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def step_lines(episode: Episodes, actions: list[int], expected: float) -> list[dict[str, Any]]:
    """What was seen, done and felt in each step; `worker_works` is judged before the step."""
    lines, signals = list[dict[str, Any]](), 0
    for action in actions:
        line: dict[str, Any] = {
            "tape_seed": int(episode.tape.seed),
            "t": episode.t,
            "action": ACTIONS[action],
            "observation": episode.observation().tolist(),
            "worker_works": episode.working,
            "fatigue_before": episode.f,
            "difficulty": episode.d,
            "eps": float(episode.tape.eps[episode.t]),
        }
        episode.step(action)
        signals += action == SIGNAL
        line |= {
            "helped": action == HELP and line["worker_works"],
            "e": episode.e,
            "fatigue": episode.f,
            "progress": episode.u,
            "E": episode.effort,
            "B": episode.params.signal_strength * signals,
            "L": expected,
            "reward": 0.0,
        }
        lines.append(line)
    return lines
