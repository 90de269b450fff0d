"""Numbers of RARO's README that are settings of the domain or its experiments, and those that are neither."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from benchmarks import raro
from benchmarks.gpu import raro as gpu_raro
from domains.raro.config import RaroSettings
from domains.raro.rewards import Label, reward
from domains.raro.watch import MOST_PARSE_FAILURES, WINDOW
from pipelinerl.config.compose import compose
from pipelinerl.launcher.arguments import parse
from tests.support.claims import words
from tests.support.measured import result
from tests.support.settings import Setting

GOAL = 0.9
"""Of the gain ratio, in benchmarks/goals.yaml."""
QUESTIONS_PER_STEP = 4


@cache
def preset(domain: str, hardware: str) -> DictConfig:
    return compose([f"+domain={domain}", f"hardware={hardware}", "model_path=MODEL"]).tree


@cache
def run_of(game: str, arm: str) -> DictConfig:
    """A run in miniature, as its experiment starts it."""
    plan = raro.Plan(raro.GAMES[game], Path("out"), 104, 4, raro.SIZES, (), 1248)
    return compose(parse(raro.command(plan, arm, 0)[3:]).overrides).tree


@cache
def run_on_cards(arm: str) -> DictConfig:
    plan = gpu_raro.Plan("gpu", gpu_raro.ON_CARDS, Path("work"), None)
    return compose(plan.overrides(arm, 0)).tree


def weights(cfg: DictConfig) -> list[float]:
    """Numerators and denominators of the roles' weights, as they are written."""
    return [
        float(part) for role in ("policy", "critic") for part in cfg.finetune.rl.role_weights[role].split("/")
    ]


def rewards() -> list[float]:
    """Of critic and policy, by the rows of the page's table."""
    return [
        value for label in (Label.EXPERT, Label.POLICY, Label.TIE) for value in reward(label, RaroSettings())
    ]


def of_a_question() -> list[float]:
    """Attempts, verdicts, weights, KL; verdicts on both pairs; texts and requests of a rollout; texts."""
    cfg = preset("raro", "gpu")
    attempts, verdicts = cfg.finetune.attempts, cfg.raro.critic_group_size
    texts = 1 + verdicts * round(1 / (1 - cfg.raro.replay.fraction))
    first = [attempts, verdicts, *weights(cfg), cfg.finetune.rl.kl_coef, verdicts, verdicts]
    return [*first, texts, texts - 1, attempts, attempts * texts]


def of_a_step() -> list[float]:
    """Texts, questions, rollouts under way, requests, steps, and how often they are evaluated."""
    cfg = preset("raro", "gpu")
    texts, steps = cfg.finetune.gradient_accumulation_passes, cfg.finetune.max_train_steps
    assert cfg.max_lag == texts and cfg.eval_every_n_versions == cfg.finetune.save_checkpoint_steps * texts
    others = [preset(name, "gpu").finetune.gradient_accumulation_passes for name in ("raro_rlvr", "raro_sft")]
    assert others[0] == others[1]
    rates = [preset(name, "gpu").finetune.learning_rate for name in ("raro_sft", "raro")]
    per_question = of_a_question()[-1]
    running = [cfg.actor.llm_max_rollouts, cfg.vllm_config.vllm_kwargs["max-num-seqs"]]
    run = [steps, cfg.finetune.save_checkpoint_steps]
    return [texts, texts / per_question, *running, *run, others[0], *rates]


def countdown() -> list[float]:
    """Range of numbers and targets, held-out questions."""
    game = run_of("tiny", "raro").raro.data.countdown
    return [*game.number_range, *game.target, game.sizes.test]


def texts_of(game: str, arm: str = "raro") -> float:
    played = raro.GAMES[game]
    return float(played.step.texts(played.arms[arm]))


def verdicts_of(step: raro.Step) -> float:
    """Of a step of RARO, on fresh and on earlier pairs."""
    return float(step.texts(gpu_raro.ARMS["raro"]) - step.completions)


def reference() -> list[float]:
    """Attempts, verdicts, weights; completions and verdicts of a step; KL, ties; limits and rate of all."""
    cfg, step = run_of("reference", "raro"), raro.GAMES["reference"].step
    assert cfg.finetune.attempts * QUESTIONS_PER_STEP == step.completions and cfg.raro.replay.fraction == 0.5
    for arm in ("raro", "rlvr", "sft"):
        one = run_of("reference", arm)
        assert (one.raro.overlength, one.raro.prompt_set) == ("zero", "tiny")
        assert one.finetune.lr_scheduler_type == "cosine"
        assert one.finetune.learning_rate == cfg.finetune.learning_rate
    group = [cfg.finetune.attempts, cfg.raro.critic_group_size, *weights(cfg)]
    method = [cfg.finetune.rl.kl_coef, cfg.raro.tau_crit, cfg.raro.tau_pol]
    limits = [cfg.raro.policy.max_tokens, cfg.raro.critic.max_tokens]
    return [*group, step.completions, verdicts_of(step), *method, *limits, cfg.finetune.learning_rate]


def smollm2_runs() -> list[float]:
    """Steps, attempts, verdicts, weights, KL, rate and warm-up; the method's rate, and that of more SFT."""
    cfg, supervised = run_on_cards("raro"), run_on_cards("sft")
    assert (cfg.raro.overlength, cfg.raro.prompt_set) == ("mask", "full")
    assert cfg.finetune.lr_scheduler_type == "constant_with_warmup"
    assert supervised.finetune.lr_scheduler_type == "cosine"
    made = [cfg.finetune.max_train_steps, cfg.finetune.attempts, cfg.raro.critic_group_size, *weights(cfg)]
    rates = [
        cfg.finetune.learning_rate,
        cfg.finetune.num_warmup_steps,
        preset("raro", "gpu").finetune.learning_rate,
    ]
    return [*made, cfg.finetune.rl.kl_coef, *rates, supervised.finetune.learning_rate]


def on_cards_step() -> Sequence[float]:
    return [verdicts_of(gpu_raro.ON_CARDS.step), float(gpu_raro.ON_CARDS.step.texts(gpu_raro.ARMS["raro"]))]


def first_evaluation() -> float:
    """Optimizer steps of the pretrained model until then."""
    return (
        float(list(result("gpu_raro")["runs"][0]["curve"])[1])
        / result("gpu_raro")["policy completions per step"]
    )


POWER = r"(\d+(?:\.\d+)?(?:e-\d+)?)"
SIXTEEN = words(r"(\d+) attempts, (\d+) verdicts a pair, weights (\d)/(\d) and (\d)/(\d)")

RARO_SETTINGS: list[Setting] = [
    (
        words(
            r"expert's answer \| (\d) \| (\d) \| .*?answer \| (\d) \| (\d) \| .*? (\S+) \| `tau_pol` (\S+) \|"
        ),
        rewards,
    ),
    (
        words(
            rf"then apply \({SIXTEEN}, KL {POWER}\)\. .*? its completion, (\d+) verdicts on its own pair and "
            r"(\d+) on an earlier one, (\d+) texts .*? of which (\d+) run .*? question, (\d+) rollouts, is "
            r"(\d+) texts"
        ),
        of_a_question,
    ),
    (
        words(
            r"a step is therefore (\S+) texts of (\d+) questions, (\d+) rollouts .*? on (\d+) requests, "
            r".*? a run is (\d+) steps, evaluated and saved every (\d+) .*? have steps of (\d+) texts, .*? "
            rf"learning rate, {POWER} instead of {POWER}"
        ),
        of_a_step,
    ),
    (
        words(r"must have (\S+) positions"),
        lambda: [preset("raro", "gpu").vllm_config.vllm_kwargs.max_model_len],
    ),
    (words(r"`finetune\.rl\.role_weights` (\d)/(\d) and (\d)/(\d) "), lambda: weights(preset("raro", "gpu"))),
    (words(r"when over (\d+) % of the last (\S+) verdicts"), lambda: [100 * MOST_PARSE_FAILURES, WINDOW]),
    (words(r"numbers from (\d+) to (\d+) and targets from (\d+) to (\d+); (\S+) held-out"), countdown),
    (
        words(r"The RL arms have (\d+) policy completions .*? trains on (\d+) verdicts more"),
        lambda: [raro.GAMES["tiny"].step.completions, verdicts_of(raro.GAMES["tiny"].step)],
    ),
    (
        words(r"of the first command \((\d+) steps; .*?percent right on (\S+) held-out"),
        lambda: [result("raro")["steps"], result("raro")["runs"][0]["questions"]],
    ),
    (words(r"Over the (\d+) steps of the first table"), lambda: [result("raro")["steps"]]),
    (words(r"the policy earns .*? \+ (\S+) t\. A critic"), lambda: [RaroSettings().tau_pol]),
    (words(r"right in less than (\d+) % of its"), lambda: [100 * RaroSettings().tau_crit]),
    (words(r"weights of (\d)/(\d) each in `raro_tiny`"), lambda: weights(run_of("tiny", "raro"))[:2]),
    (
        words(r"affordable \((\S+) texts instead of ([\d,]+)\)\. .*? noise that (\d+) would"),
        lambda: [texts_of("tiny"), texts_of("reference"), preset("raro", "gpu").raro.critic_group_size],
    ),
    (
        words(
            rf"make a step cheap: {SIXTEEN}\. A step is four questions, (\d+) policy completions as above "
            rf"and (\S+) verdicts .*? KL {POWER}, tau (\S+) and (\S+) and .*? (\d+) tokens for an answer "
            rf"and (\d+) for a verdict, and a rate that falls from {POWER}"
        ),
        reference,
    ),
    (words(r"answers, its ([\d,]+) questions"), lambda: [raro.SIZES["train"]]),
    (
        words(
            rf"`: (\d+) steps of four questions, {SIXTEEN}, KL {POWER}, a constant learning rate of {POWER} "
            rf"after (\d+) steps .*? method's {POWER} this small .*? falls from {POWER} by a cosine"
        ),
        smollm2_runs,
    ),
    (words(r"trains on bare results \((\S+) questions, "), lambda: [gpu_raro.ON_CARDS.sizes["train"]]),
    (words(r"But (\S+) of its (\S+) texts in a step are verdicts"), on_cards_step),
    (words(r"the policy earns the tie's (\S+)\. What"), lambda: [RaroSettings().tau_pol]),
    (
        words(r"questions whose (\d+) verdicts resemble"),
        lambda: [run_on_cards("raro").raro.critic_group_size],
    ),
    (
        words(r"lies in the first quarter: after (\S+) completions"),
        lambda: [float(list(result("raro_reference")["runs"][0]["curve"])[1])],
    ),
    (words(r"learn most of it in the first (\d+) steps"), lambda: [first_evaluation()]),
    (words(r"After the first (\d+) steps the share"), lambda: [first_evaluation()]),
    (words(r"keep what SmolLM2 has after (\d+) steps"), lambda: [first_evaluation()]),
    (
        words(r"the goal of (\S+) for the gain ratio"),
        lambda: [GOAL],
    ),
    (words(r"the goal of (\S+) is met by greedy answers"), lambda: [GOAL]),
    (words(r"Both goals are met here, by the last versions: (\S+) of the"), lambda: [GOAL]),
    (words(r"\*\*The goal in miniature\*\*: (\S+) of the"), lambda: [GOAL]),
]
"""Sentences, and what code and configurations have."""


RARO_OTHERS: dict[str, str] = {
    r"arXiv (2511\.21667)": "a paper",
    r"SmolLM2-(135)M": "the name of a model",
    r"K \((1) \+ G / \((1) - f\)\)|f/\((1) - f\)": "formulas",
    r"\((1) - t\)\((1) - a\)|a = (0\.5), pays": "formulas",
    r"held-out reward and success are (0), and": "the least that there is",
    r"attempt earns (0), as|no answer earns (0)\.": "rules",
    r"^([1-4])\. (?:Take|Draw|Each|Policy)": "a list",
    r"`position1_rate` \((0\.5): no|\(far from (0\.5): length|stay above (0\.5): there": "a guess",
    r"half of the (95) % t|Fieller's (95) % interval|of the (95) % interval": "what an interval is",
    r"ties are far below the guide's (70) %|guide speaks of about (70) %": "the method's guide",
    r"the 95 % interval above (0), is|RARO - more SFT above (0) \(|version (0)(?: with every|\.\n)": "zero",
    r"later it is above (1): verifier": "held by test_claims.py",
    r"with weights of (1)/(2) each(?: \(the arm `half`\))?": "parts of names",
    r"\(the arm `half`\) seed (0) has": "a seed",
}
"""Numbers that are neither measured nor settings, and why."""
