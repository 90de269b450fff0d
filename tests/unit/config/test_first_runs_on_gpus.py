"""What a run with a model of the user's own is by default, and that measured presets keep what they had."""

from collections.abc import Callable

import pytest
from omegaconf import OmegaConf

from pipelinerl.config.compose import Composition

Compose = Callable[..., Composition]
SIZES = (
    "finetune.gradient_accumulation_passes",
    "max_lag",
    "eval_every_n_versions",
    "finetune.max_train_steps",
    "finetune.save_checkpoint_steps",
    "finetune.num_warmup_steps",
    "finetune.learning_rate",
    "finetune.lr_scheduler_type",
)


def sizes(composed: Compose, *words: str) -> tuple[object, ...]:
    tree = composed(*words, "hardware=gpu").tree
    return tuple(OmegaConf.select(tree, key) for key in SIZES)


@pytest.mark.parametrize(("domain", "group"), [("privacy_hopqa", 8), ("reputation_hacking", 8 * 50)])
def test_a_first_run_ends_bounds_the_age_of_its_texts_and_is_looked_at(
    composed: Compose, domain: str, group: int
) -> None:
    texts, lag, every, steps, save, warmup, rate, _ = sizes(composed, f"+domain={domain}")
    assert isinstance(texts, int) and isinstance(steps, int) and isinstance(warmup, int)
    assert texts % group == 0 and texts // group >= 4
    assert (lag, every, save, rate) == (2 * texts, 25 * texts, 25, 1e-6)
    assert 100 <= steps <= 500 and steps % 25 == 0 and warmup <= steps / 10


def test_the_texts_and_the_rate_of_privacy_hopqa_are_the_published_ones(composed: Compose) -> None:
    texts, *_, rate, schedule = sizes(composed, "+domain=privacy_hopqa")
    assert (texts, rate, schedule) == (4128, 1e-6, "cosine")


def test_only_the_supervised_arm_of_raro_has_a_supervised_rate(composed: Compose) -> None:
    rates = {arm: sizes(composed, f"+domain={arm}")[6] for arm in ("raro", "raro_rlvr", "raro_sft")}
    assert rates == {"raro": 1e-6, "raro_rlvr": 1e-6, "raro_sft": 5e-5}


@pytest.mark.parametrize(
    ("preset", "measured"),
    [
        ("privacy_hopqa_from_scratch", (256, 4096, 7680, 120, 60, 0, 5e-5, "constant")),
        ("privacy_hopqa_pretrained", (256, 4096, 7680, 100, 60, 0, 6e-5, "constant")),
        ("reputation_hacking_pretrained", (1600, 3200, 1_000_000, 60, 20, 0, 5e-5, "cosine")),
    ],
)
def test_a_measured_preset_does_not_change_with_the_defaults(
    composed: Compose, preset: str, measured: tuple[object, ...]
) -> None:
    domain = "privacy_hopqa" if preset.startswith("privacy_hopqa") else "reputation_hacking"
    assert sizes(composed, f"+domain={domain}", f"+preset={preset}") == measured
