"""Numbers of the reputation game's README that are settings, and those that are neither."""

from functools import cache

from omegaconf import DictConfig

from benchmarks.gpu import reputation as gpu_reputation
from domains.reputation_hacking.dataset import FIRST_SEED
from domains.reputation_hacking.game.mitigations import DESIGNS
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.tracing import TRACE_MAX_MB
from domains.reputation_hacking.language.prompts import DIFFICULTY_CUTS, FATIGUE_CUTS
from domains.reputation_hacking.ppo.recipes import BASE, STRONG
from domains.reputation_hacking.settings import ReputationSettings
from pipelinerl.config.compose import compose
from tests.support.claims import words
from tests.support.measured import result
from tests.support.settings import Setting

DOMAIN = "+domain=reputation_hacking"


@cache
def cpu() -> DictConfig:
    return compose([DOMAIN, "hardware=cpu"]).tree


@cache
def gpu() -> DictConfig:
    return compose([DOMAIN, "hardware=gpu", "model_path=MODEL"]).tree


@cache
def pretrained() -> DictConfig:
    return compose([DOMAIN, "hardware=gpu", "+preset=reputation_hacking_pretrained"]).tree


def of_a_step() -> list[float]:
    """Texts of a group and a step, rate, steps, and how often they are evaluated."""
    cfg = gpu()
    texts, group = cfg.finetune.gradient_accumulation_passes, cfg.finetune.attempts * Params().T
    assert texts == 8 * group and len(cfg.dataset_loader_params.c_signal) == 4 and cfg.max_lag == 2 * texts
    every = cfg.finetune.save_checkpoint_steps
    assert cfg.eval_every_n_versions == every * texts
    return [group, texts, cfg.finetune.learning_rate, cfg.finetune.max_train_steps, every]


def pulls() -> list[float]:
    """Coefficients of the reference term at first and last, the same on a CPU and with a pretrained model."""
    terms = [(cfg.finetune.rl.kl_coef, cfg.finetune.rl.final_kl_coef) for cfg in (cpu(), pretrained())]
    assert terms[0] == terms[1]
    return list(terms[0])


def constant(design: str, name: str) -> float:
    return DESIGNS[design][name][0]


def imitation() -> list[float]:
    """Million tokens of imitation, steps and rate of the pretrained model."""
    cfg = pretrained()
    (phase,) = cfg.bootstrap.phases
    return [phase["tokens"] / 1e6, cfg.finetune.max_train_steps, cfg.finetune.learning_rate]


def goal_of_speed(key: str, unit: float) -> float:
    return float(result("reputation")["speed"][key]) / unit


REPUTATION_SETTINGS: list[Setting] = [
    (words(r"a Worker \(scripted\) for (\d+) steps"), lambda: [Params().T]),
    (words(r"three training seeds a price, (\S+) steps;"), lambda: [BASE.total_steps]),
    (words(r"a few episodes, at most (\d+) MB"), lambda: [TRACE_MAX_MB]),
    (words(r"HELP takes (\d+) % off"), lambda: [100 * Params().help_strength]),
    (words(r"`trace_max_mb` \((\d)\) bounds"), lambda: [TRACE_MAX_MB]),
    (words(r"is (\S+) steps with (\d+) environments; the"), lambda: [BASE.total_steps, BASE.n_envs]),
    (words(r"and rest flip at (\S+) of"), lambda: [Params().fatigue_threshold / Params().fatigue_max]),
    (
        words(r"λ = (\d) and (\S+) steps with (\d+) env"),
        lambda: [STRONG.gae_lambda, STRONG.total_steps, STRONG.n_envs],
    ),
    (words(r"seeds (\d+)\.\.10999, deterministic"), lambda: [FIRST_SEED["heldout"]]),
    (words(r"keeps\), held-out seeds (\d+)\.\."), lambda: [FIRST_SEED["heldout"]]),
    (words(r"tape drawing \(goal (\d+) M\)"), lambda: [goal_of_speed("batch_4096_goal", 1e6)]),
    (words(r"usual settings \(goal (\d+)\)"), lambda: [goal_of_speed("ppo_ratio_goal", 1)]),
    (words(r"steps a second with (\d+) environments, "), lambda: [BASE.n_envs]),
    (words(r"only SIGNALs of the first (\d+) steps"), lambda: [constant("window", "m")]),
    (
        words(r"B = (\d) · \((\d) - exp\(-K / (\d)\)\)"),
        lambda: [constant("saturate", "b"), 1, constant("saturate", "b")],
    ),
    (
        words(r"with probability (\S+) an episode's SIGNALs count (\S+) each"),
        lambda: [constant("audit", "p"), -constant("audit", "lam")],
    ),
    (
        words(r"situation \((\d) bins of fatigue × (\d) of"),
        lambda: [len(FATIGUE_CUTS) + 1, len(DIFFICULTY_CUTS) + 1],
    ),
    (words(r"names no action \((\S+)\) \|"), lambda: [ReputationSettings().invalid_penalty]),
    (
        words(
            r"a group is (\d+) texts, .*? a step is (\S+) texts of eight groups, .*? learning rate of (\S+), "
            r"no .*? a run is (\d+) steps, evaluated and saved every (\d+) \("
        ),
        of_a_step,
    ),
    (
        words(r"`advantage: to_go`, (\d+) steps of (\S+) texts; "),
        lambda: [cpu().finetune.max_train_steps, cpu().finetune.gradient_accumulation_passes],
    ),
    (words(r"The goal of (\d+) % of the margin holds"), lambda: [100 * gpu_reputation.GOAL]),
    (words(r"likeliest answers the goal of (\d+) % of"), lambda: [100 * gpu_reputation.GOAL]),
    (words(r"not evaluated: the goal of (\d+) % is"), lambda: [100 * gpu_reputation.GOAL]),
    (words(r"habits \((\d+) million tokens\), .*? above, (\d+) steps at a rate of (\S+)\. On"), imitation),
    (
        words(r"the first (\d+) of them, likeliest .*? work\), (\d+) steps of (\S+) texts in"),
        lambda: [
            *(result("gpu_reputation")["settings"][key] for key in ("tapes", "steps")),
            pretrained().finetune.gradient_accumulation_passes,
        ],
    ),
    (words(r"It begins at (\S+) and falls to (\d), so"), pulls),
]
"""Sentences, and what code and configurations have."""

REPUTATION_OTHERS: dict[str, str] = {
    r"by (1) - a: all-HELP|\(\((1)-a\)/a\)": "formulas",
    r"that looks (10) episodes ahead": "in test_claims.py, with its value",
    r"since version (1\.0), so": "gymnasium",
    r"The goal of (0\.50) with `base`|stretch goal of (0\.77) is|stretch goal of (0\.77)\*\*": "goals",
    r"the same seeds take .*? at (0\.7), and .*? at (0\.75)\.": "prices",
    r"above (0\.7) `strong`|at (0\.7) is not met|and at (0\.65) `base`": "prices",
    r"N = (4096) with|M at (16) and|M at (1); the": "in test_claims.py, with their rates",
    r"chain, from (0) and": "its definition",
    r"; (11) to (13) minutes on two\s+cores .*? while (90) such steps took (90) s on": "as said, in no file",
    r"SmolLM2-(135)M|one of (135) million": "the name of a model",
    r"The (95) % intervals": "what an interval is",
    r"but for the valley's shares, are (single experiments.*?)\n## Not shown yet": "as said, in no file",
    r"updates of (2,048) steps and ten": "a constant inside benchmarks/reputation.py",
    r"original's own settings \((1,024) steps": "in docs/from_reputation.md",
}
"""Numbers that are neither measured nor settings, and why."""
