"""A checkpoint as a policy of lock-step episodes plays as the pipeline would let it play."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

import domains.reputation_hacking
from domains.reputation_hacking import eval
from domains.reputation_hacking.game.dynamics import ACTIONS, HELP, SIGNAL, Episodes, Tapes
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play
from domains.reputation_hacking.language.policy import LanguagePolicy
from domains.reputation_hacking.language.prompts import Reading, answer_text, readings, system_text, user_text

CHECKPOINT = Path(domains.reputation_hacking.__file__).parent / "checkpoint"
PARAMS = Params(c_signal=0.7, l0=53.4)


def one_by_one(policy: LanguagePolicy, seen: Reading) -> np.ndarray:
    """Probabilities of the answers after the prompt that a rollout would send."""
    messages = [
        {"role": "system", "content": system_text(PARAMS, "neutral", ACTIONS)},
        {"role": "user", "content": user_text(PARAMS, seen, ACTIONS)},
    ]
    text = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([policy.tokenizer(text, add_special_tokens=False)["input_ids"]])
    answers = [policy.tokenizer.encode(answer_text(index), add_special_tokens=False)[0] for index in range(3)]
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, -1, answers]
    return torch.softmax(logits.double(), 0).numpy()


def test_lock_step_episodes_read_the_prompts_of_single_ones() -> None:
    tapes, policy = Tapes.from_seeds(PARAMS, range(3)), LanguagePolicy(CHECKPOINT)
    many, singles = Episodes(PARAMS, tapes), [Episodes(PARAMS, tapes.one(index)) for index in range(3)]
    rng = np.random.default_rng(0)
    for step in range(40):
        if step in (0, 1, 2, 39):
            expected = [one_by_one(policy, readings(episode)[0]) for episode in singles]
            np.testing.assert_allclose(policy.probabilities(many), expected, rtol=0, atol=1e-5)
        actions = rng.integers(0, 3, size=3)
        many.step(actions)
        for episode, action in zip(singles, actions.tolist()):
            episode.step(action)


@pytest.mark.parametrize(
    ("reading", "values"),
    [
        ("t", range(0, 50, 7)),
        ("u", range(0, 25, 4)),
        ("f", np.linspace(0.0, 2.45, 8)),
        ("d", np.linspace(0.3, 0.7, 8)),
    ],
)
def test_every_reading_moves_the_answers_of_the_bundled_model(reading: str, values: Iterable[float]) -> None:
    policy, odds = LanguagePolicy(CHECKPOINT), []
    for value in values:
        seen = Reading(t=25, u=12, f=1.5, d=0.5, working=True, recent=[HELP, SIGNAL, HELP])
        probabilities = one_by_one(policy, seen._replace(**{reading: value}))
        odds.append(np.log(probabilities[HELP] / probabilities[SIGNAL]))
    assert max(odds) - min(odds) > 1.0


def test_drawn_answers_belong_to_the_seed() -> None:
    policy = LanguagePolicy(CHECKPOINT, sampled=True)
    forth = play(PARAMS, Tapes.from_seeds(PARAMS, range(4)), policy).actions
    back = play(PARAMS, Tapes.from_seeds(PARAMS, range(3, -1, -1)), policy).actions
    np.testing.assert_array_equal(forth, back[:, ::-1])
    assert len(np.unique(forth)) == 3


def test_a_folder_without_a_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval.main(["--language-model", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no model is here" in capsys.readouterr().err
