"""Games of the package textarena, made and played: the only file that imports it. Called by rollouts, checks.

The package draws from Python's process-wide generator, when a game is made and at its moves. Each game here
has a state of its own for that generator, in place while one of its functions runs and at no other time, so
that games side by side in one process do not disturb each other.
"""

import io
import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from pipelinerl.base.errors import first_line, suggestion

REMEDY = "pip install 'pipelinerl[textarena]'"
_ONE_SEAT = """
2048 Bandit Blackjack Crosswords FifteenPuzzle FrozenLake GuessTheNumber LightsOut LogicPuzzle Mastermind
Minesweeper PegJump RushHour Secretary Set Sokoban Sudoku TowerOfHanoi
"""
_TWO_SEATS = """
Alquerque Battleship Breakthrough Briscola Chopsticks ColonelBlotto ConnectFour Crusade GameOfPureStrategy
GermanWhist Golf HighSociety IndianPoker IteratedMatchingPennies IteratedPrisonersDilemma
IteratedRockPaperScissors IteratedTwoThirdsAverage IteratedUltimatumGame KuhnPoker LiarsDice LinesOfAction
MemoryGame NewRecruit Nim Othello PigDice Poker QuantumTicTacToe SimpleBlindAuction SimpleNegotiation
SimpleTak Snake SpiteAndMalice Stratego Surround Tak TicTacToe TruthAndDeception TwoDollar UltimateTicTacToe
WildTicTacToe
"""
PLAYERS = dict.fromkeys(_ONE_SEAT.split(), 1) | dict.fromkeys(_TWO_SEATS.split(), 2)
"""Seats of games that need no download, by name without version; the README says why others are left out."""
LEFT_OUT = frozenset(
    {
        # Boards are drawn until one can be solved, for minutes in which the worker answers nothing.
        "Sokoban-v0-medium",
        "Sokoban-v0-medium-train",
        "Sudoku-v0-hard",
        "Sudoku-v0-hard-train",
        # They end at their first observation, because their wrapper looks for a board that they do not show.
        "Breakthrough-v0-blind-train",
        "LightsOut-v0-train",
    }
)
"""Variants of these games that cannot be played."""

LONGEST = 100
"""Digits of a number that a game reads: Python refuses to read 4,300, and no board or purse is so large. So
many rounds of a loop, too.
"""
_LONG_NUMBER = re.compile(rf"\d{{{LONGEST + 1},}}")
_LOOP = re.compile(rf"(.{{1,32}}?)\1{{{LONGEST},}}", re.DOTALL)
"""A piece of text again and again, as a policy that has lost its way writes it. Some games search it for a
move in quadratic time, and every game of a worker would wait.
"""


class GameError(ValueError):
    """A game or an option that does not exist, or a game that cannot go on; one line."""


def known() -> dict[str, int]:
    """Players of each game that can be played, by id. Raises GameError without the package."""
    try:
        import textarena  # noqa: F401  registers the games
        from textarena.envs.registration import ENV_REGISTRY
    except ImportError as error:
        missing = f"{error.name} is not installed" if error.name else first_line(error)
        raise GameError(f"textarena cannot be imported, {missing}; {REMEDY}") from None
    # `-raw` observations are lists of messages, to be put into words by the caller.
    ids = (name for name in ENV_REGISTRY if not name.endswith("-raw") and name not in LEFT_OUT)
    return {name: PLAYERS[kind] for name in ids if (kind := name.partition("-v")[0]) in PLAYERS}


def _shortened(action: str) -> str:
    """A move as a game can read it: of loops LONGEST rounds, of numbers as many digits."""
    action = _LOOP.sub(lambda found: found[1] * LONGEST, action)
    return _LONG_NUMBER.sub(lambda found: found[0][:LONGEST], action)


class Game:
    """One game in play. No method awaits, so that nothing else of the event loop runs inside one."""

    def __init__(self, name: str, options: str = "{}", seed: int = 0) -> None:
        """`options` is JSON text. Raises GameError for what does not exist or does not start."""
        found = known()
        if name not in found:
            raise GameError(f"games.{name}: no game that is played here; {suggestion(name, found)}")
        import textarena

        self.name, self.players, self.over = name, found[name], False
        self._random = random.Random(seed).getstate()
        try:
            with self._alone():
                self._env: Any = textarena.make(name, **json.loads(options))
                self._env.reset(num_players=self.players, seed=seed)
        except Exception as error:  # what a game says of an option: a TypeError, an assertion, anything
            raise GameError(f"games.{name}={options}: {first_line(error)}") from None

    def observation(self) -> tuple[int, str]:
        """Who is to move, 0 or 1, and what that seat sees. Raises GameError where the game fails."""
        with self._playing():
            seat, seen = self._env.get_observation()
            return int(seat), str(seen).strip()

    def move(self, action: str) -> None:
        """Moves against the rules are the game's business. Raises GameError where the game fails at one."""
        with self._playing():
            self.over = bool(self._env.step(_shortened(action))[0])

    def rewards(self) -> list[float]:
        """What each seat has earned; zeros in a game that has not ended."""
        if not self.over:
            return [0.0] * self.players
        with self._playing():
            found = self._env.close()[0]
            return [float(found[seat]) for seat in range(self.players)]

    @property
    def ended_by_invalid_move(self) -> bool:
        """Whether a seat lost by moving against the rules."""
        return self.over and any(bool(seat.get("invalid_move")) for seat in self._env.close()[1].values())

    @contextmanager
    def _playing(self) -> Iterator[None]:
        try:
            with self._alone():
                yield
        except Exception as error:  # games have faults of their own, and rewards that are texts
            raise GameError(f"{self.name}: {type(error).__name__}: {first_line(error)}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The process-wide generator is this game's, and what the game prints is dropped."""
        others = random.getstate()
        random.setstate(self._random)
        try:
            with redirect_stdout(io.StringIO()):
                yield
        finally:
            self._random = random.getstate()
            random.setstate(others)
