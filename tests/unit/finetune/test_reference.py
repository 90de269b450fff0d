"""From groups of texts to the loss of a step: equal to a float64 computation that shares no code with it.

The reference goes text by text through a float64 copy of the model with transformers' own attention, and
token by token through the formulas of docs/objective.md. The product packs, or pads nothing and takes text
by text; both must give the reference's numbers to 1e-6.
"""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.loss_scale import apply_scales
from pipelinerl.finetune.rl.losses import Coefficients, total_loss
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.preprocess.chunk import process_chunk
from tests.support.builders import record, samples
from tests.support.policy import learner, tiny_model

K, E, TEMPERATURE, SEED = 0.1, 0.01, 0.8, 3
GROUPS, ATTEMPTS = 3, 4
TOLERANCE = 1e-6
Text = dict[str, Any]

LOSSES: list[dict[str, Any]] = [
    {"policy_loss": "reinforce"},
    {"policy_loss": "reinforce", "use_advantages": False, "relu_log_p_weights": True},
    {"policy_loss": "ppo"},
    {"policy_loss": "ppo", "overlong_filtering": True},
    {"policy_loss": "gspo"},
    {"policy_loss": "cispo", "group_normalization": True},
]
ADVANTAGES: list[dict[str, Any]] = [
    {},
    {"divide_advantage_by_std": True},
    {"step_reward_advantages": True},
    {"step_reward_advantages": True, "divide_advantage_by_std": True, "group_normalization": True},
]


@cache
def groups_of_texts(steps: int) -> list[Text]:
    """Sampled texts of which a third was cut, near enough to the policy that some ratios are clipped.

    `new` and `entropy` are the policy's log-probabilities of the labelled tokens, and its entropies there.
    """
    rng = np.random.default_rng(steps)
    model = copy.deepcopy(policy()).double()
    model.set_attn_implementation("eager")
    texts = [
        record(f"g{g}", r, s, float(rng.normal()), 100 * g + 10 * r + s)
        for g in range(GROUPS)
        for r in range(ATTEMPTS)
        for s in range(steps)
    ]
    for text in texts:
        new, entropy = policy64(model, text)
        text |= {"new": new, "entropy": entropy}
        text["logprobs"] = (new + rng.uniform(-0.4, 0.4, len(new))).astype(np.float32)
        text["ref_logprobs"] = (new + rng.uniform(-7, 7, len(new))).astype(np.float32)
        text["finish_reason"] = "length" if rng.random() < 0.33 else "stop"
    return texts


def policy64(model: Any, text: Text) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of the labelled tokens and entropies where they are predicted, float64."""
    ids = torch.from_numpy(text["input_ids"].astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].numpy() / TEMPERATURE
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    at = np.flatnonzero(text["labels"] != -100)
    rows = log_p[at - 1]
    return rows[np.arange(len(at)), text["labels"][at]], -(np.exp(rows) * rows).sum(1)


def advantage64(texts: list[Text], text: Text, rl: RLConfig) -> float:
    """Reward minus the mean reward of what the text is compared with."""
    mates = [t for t in texts if t["group_id"] == text["group_id"]]
    if rl.step_reward_advantages:
        mates = [t for t in mates if t["metadata"]["step_index"] == text["metadata"]["step_index"]]
    others = [t["reward"] for t in mates if t is not text]
    advantage = text["reward"] - sum(others) / len(others)
    if rl.divide_advantage_by_std:
        advantage /= np.std([t["reward"] for t in mates], ddof=1) + 1e-4
    return float(advantage)


def weight64(texts: list[Text], text: Text, rl: RLConfig) -> float:
    """The weight of each of the text's tokens."""
    mates = [t for t in texts if t["group_id"] == text["group_id"]]
    tokens = sum(len(t["input_ids"]) for t in mates) / ATTEMPTS
    weight = 1 / tokens if rl.group_normalization else 1 / len(texts)
    return 0.0 if rl.overlong_filtering and text["finish_reason"] == "length" else weight


def loss64(texts: list[Text], rl: RLConfig, k: float, e: float) -> float:
    total = 0.0
    low, high = 1 - rl.epsilon_low, 1 + rl.epsilon_high
    for text in texts:
        new, entropy = text["new"], text["entropy"]
        old, ref = text["logprobs"].astype(float), text["ref_logprobs"].astype(float)
        r, w = np.exp(new - old), weight64(texts, text, rl)
        factor = advantage64(texts, text, rl) if rl.use_advantages else text["reward"]
        factor = max(factor, 0.0) if rl.relu_log_p_weights else factor
        clipped = np.clip(r, low, high)
        if rl.policy_loss == "gspo":
            s = np.exp(np.mean(new - old))
            total -= w * len(new) * min(s * factor, np.clip(s, low, high) * factor)
            continue
        per_token = {
            "reinforce": new * factor * np.minimum(r, high),
            "ppo": np.minimum(r * factor, clipped * factor),
            "cispo": clipped * factor * new,
        }[rl.policy_loss]
        d = np.clip(ref - new, -5, 5)
        total -= w * (per_token - k * (np.exp(d) - d - 1) + e * entropy).sum()
    return float(total)


@cache
def policy() -> Any:
    return tiny_model(seed=SEED)


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda x: "-".join(map(str, x.values())))
def test_the_loss_of_a_step_equals_the_reference(loss: dict[str, Any], steps: int, packing: bool) -> None:
    texts = groups_of_texts(steps)
    for options in ADVANTAGES:
        if steps > 1 and not options.get("step_reward_advantages"):
            continue  # texts of a rollout have rewards of their own
        rl = RLConfig(epsilon_low=0.1, epsilon_high=0.2, temperature=TEMPERATURE, **{**options, **loss})
        k, e = (0.0, 0.0) if rl.policy_loss == "gspo" else (K, E)
        expected = loss64(texts, rl, k, e)

        ready = process_chunk(samples(texts), rl).ready
        apply_scales(ready, rl)
        one, found = learner(rl, policy()), 0.0
        for batch in assemble_step(ready, 0, 24, 1, packing)[0]:
            check_columns(batch, texts, rl)
            inputs = one._loss_inputs(batch, targets_of(batch, rl))
            found += float(total_loss(inputs, rl, Coefficients(k, e)).detach().double())
        assert abs(found - expected) <= TOLERANCE * max(1.0, abs(expected)), options


def check_columns(batch: Any, texts: list[Text], rl: RLConfig) -> None:
    """Advantage, overflow and weight of every labelled token are the reference's."""
    by_id = {(t["group_id"], t["metadata"]["rollout_index"], t["metadata"]["step_index"]): t for t in texts}
    targets = targets_of(batch, rl)
    for number, name in enumerate(batch.text_ids):
        text, mine = by_id[tuple(name)], targets.sample == number
        assert mine.sum() == np.count_nonzero(text["labels"] != -100)
        assert np.abs(targets.advantages[mine] - advantage64(texts, text, rl)).max() <= TOLERANCE
        assert np.abs(targets.weight[mine] - weight64(texts, text, rl)).max() <= TOLERANCE
        cut = batch.overflow[0][targets.positions[mine]]
        assert (cut == (text["finish_reason"] == "length")).all()
