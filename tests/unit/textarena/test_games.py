"""Games: each that is offered plays offline, the same for the same seed, whoever plays beside it."""

import random
import socket
from itertools import zip_longest

import pytest

from domains.textarena.games import LEFT_OUT, PLAYERS, Game, GameError, known
from tests.support.odd_texts import ended_after

ACTIONS = [
    "[0]",
    "[1]",
    "[4]",
    "[1 2]",
    "[1 1 1]",
    "[up]",
    "[A1]",
    "[yes]",
    "[bet]",
    "[roll]",
    "[C]",
    "hello",
]
Played = list[object]
pytestmark = pytest.mark.usefixtures("arena")


def moves(name: str, seed: int, turns: int = 30) -> "zip_longest[Played]":
    """One game with chosen moves, a step at a time: who is to move and what that seat sees, then rewards."""
    game, chosen = Game(name, seed=seed), random.Random(seed)
    for _ in range(turns):
        if game.over:
            break
        yield game.observation()
        game.move(chosen.choice(ACTIONS))
    yield game.rewards()


def test_every_game_on_the_list_plays_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network here")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    games = known()
    assert {name.partition("-v")[0] for name in games} == set(PLAYERS) and len(games) == 314
    for name, players in games.items():
        *seen, rewards = moves(name, seed=1)
        assert seen and all(text and 0 <= seat < players for seat, text in seen), name
        assert len(rewards) == players and all(isinstance(reward, float) for reward in rewards), name


def test_games_side_by_side_do_not_disturb_each_other() -> None:
    # Dice, cards and boards that are drawn at moves, not only when the game is made.
    names = ["PigDice-v0", "2048-v0", "KuhnPoker-v0", "Poker-v0", "Minesweeper-v0", "SimpleBlindAuction-v0"]
    alone = [list(moves(name, seed=7)) for name in names]
    before = random.getstate()
    together = [
        list(each) for each in zip(*zip_longest(*(moves(name, seed=7) for name in names)), strict=True)
    ]
    assert [[one for one in each if one is not None] for each in together] == alone
    assert random.getstate() == before
    assert list(moves("2048-v0", seed=8)) != alone[1]


def test_what_cannot_be_played_is_one_line() -> None:
    for name, options, message in (
        ("TicTacTo-v0", "{}", "games.TicTacTo-v0: no game that is played here; did you mean TicTacToe-v0"),
        ("Wordle-v0", "{}", "games.Wordle-v0: no game that is played here"),
        ("TicTacToe-v0-raw", "{}", "no game that is played here"),
        (sorted(LEFT_OUT)[0], "{}", "no game that is played here"),
        ("TicTacToe-v0", '{"size": 4}', r"unexpected keyword argument 'size'"),
    ):
        with pytest.raises(GameError, match=message) as refused:
            Game(name, options)
        assert "\n" not in str(refused.value)


def test_options_are_those_of_the_game() -> None:
    assert "between 1 and 7 " in Game("GuessTheNumber-v0", '{"max_number": 7}').observation()[1]


@pytest.mark.parametrize("name", ["ConnectFour", "GuessTheNumber", "Othello", "SimpleTak", "TicTacToe"])
def test_a_number_that_python_does_not_read_is_a_move_and_no_fault(name: str) -> None:
    digits = "9" * 5000
    for action in (f"[{digits}]", f"[{digits} {digits}]", f"[{digits}, {digits}]"):
        game = Game(f"{name}-v0")
        game.move(action)
        assert game.rewards()[0] <= 0


@pytest.mark.parametrize("name", ["Bandit", "ColonelBlotto", "ConnectFour", "LinesOfAction"])
@pytest.mark.parametrize("said", ["[", "[ ", " ", "\n", "Let me think. ["])
def test_a_text_that_goes_round_in_a_loop_is_a_move_in_time(name: str, said: str) -> None:
    """Each of these games searches a text like one of these for minutes."""
    game = Game(f"{name}-v0")
    with ended_after(20):
        game.move(f"[{said * 50_000}]")


def test_a_move_behind_a_loop_is_still_read() -> None:
    game = Game("TicTacToe-v0")
    game.move("hm " * 5_000 + "[4]")
    assert not game.ended_by_invalid_move and game.observation()[0] == 1


def test_an_unfinished_game_has_earned_nothing() -> None:
    game = Game("TicTacToe-v0")
    game.move("[4]")
    assert not game.over and game.rewards() == [0.0, 0.0] and not game.ended_by_invalid_move


def test_a_reward_that_is_no_number_is_a_fault_of_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    # Countdown has the words and the number of an invalid move in each other's places.
    monkeypatch.setitem(PLAYERS, "Countdown", 1)
    game = Game("Countdown-v0")
    for _ in range(2):
        game.move("hello")
    with pytest.raises(GameError, match="Countdown-v0: ValueError: could not convert string to float"):
        game.rewards()
