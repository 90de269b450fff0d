"""Arms of RARO's experiment, and what a run of one left.

`benchmarks.raro` makes the runs on CPUs, `benchmarks.gpu.raro` on cards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._figures import write_json
from benchmarks._raro_figure import GAME
from benchmarks._raro_table import ENTROPY_STEPS, WAYS, Arm, RunResult, table
from domains.raro.report import FIRST_LABELS, first_accuracy
from pipelinerl.observe.history import Series, read_metrics, series

METRICS = {"sampled": "raro/eval_accuracy", "greedy": "raro/eval_accuracy_greedy"}
HALF = 'finetune.rl.role_weights={policy: "1/2", critic: "1/2"}'
COMPARED = {"sft", "raro", "rlvr"}
"""Arms that a table must have to be kept as the last complete one."""


def arms_of(domain: str) -> dict[str, Arm]:
    """All arms; those with a critic are runs of `domain`."""
    return {
        "sft": Arm("more SFT", "raro_sft", best_validation=True),
        "raro": Arm("RARO", domain, critic_groups=2),
        "rlvr": Arm("verifier RL", "raro_rlvr"),
        "no_replay": Arm("RARO without replay", domain, ("raro.replay.fraction=0",), critic_groups=1),
        "no_tie": Arm("RARO without ties", domain, ("raro.allow_tie=false",), critic_groups=2),
        "half": Arm("RARO, weights 1/2 each", domain, (HALF,), critic_groups=2),
    }


@dataclass(frozen=True)
class Step:
    """What an optimizer step is made of."""

    completions: int
    """Of the policy, or expert answers of more SFT."""
    verdicts: int
    """Of a critic group."""
    attempts: int | None = None
    """Of a question in RL arms, whose steps are then sampled one ahead; None leaves both to the preset."""

    def texts(self, arm: Arm) -> int:
        """Training texts that the completions bring, with the verdicts on each of them."""
        return self.completions * (1 + arm.critic_groups * self.verdicts)

    def overrides(self, arm: Arm) -> list[str]:
        """What makes a run of the arm take such steps."""
        texts = self.texts(arm)
        given = [f"finetune.gradient_accumulation_passes={texts}"]
        if arm.critic_groups:
            given.append(f"raro.critic_group_size={self.verdicts}")
        if self.attempts is not None and not arm.best_validation:
            given += [
                f"finetune.attempts={self.attempts}",
                f"max_lag={texts}",
                f"preprocess.ring_buffer_size={2 * texts}",
                f"preprocess.max_ready_samples_per_lead={texts}",
            ]
        return given

    def by_completions(self, arm: Arm, curve: Series, scale: float = 1.0) -> dict[str, float]:
        """A curve over trained texts as one over policy completions."""
        each = self.completions / self.texts(arm)
        return {f"{x * each:.0f}": round(scale * float(y), 4) for x, y in zip(curve.x, curve.y)}


def read(out: Path, arms: Mapping[str, Arm], name: str, seed: int, step: Step, questions: int) -> RunResult:
    """Accuracies before and after, and what the run cost, from the metrics of a finished run.

    Metrics outlive an interruption; a version that was evaluated twice counts once, the later. More SFT is
    the version with the best accuracy on the validation questions, for each way of answering its own.
    """
    arm = arms[name]
    actor, finetune = read_metrics(out, "actor"), read_metrics(out, "finetune")
    curves = {way: series(actor, f"actor/test/{metric}_mean") for way, metric in METRICS.items()}
    chosen = {way: len(curve) - 1 for way, curve in curves.items()}
    if arm.best_validation:
        validation = {way: series(actor, f"actor/val/{metric}_mean") for way, metric in METRICS.items()}
        chosen = {way: int(np.argmax(curve.y)) for way, curve in validation.items()}
    tokens, entropy = series(finetune, "stats/tokens"), series(finetune, "rl/entropy").y
    begin, end = ENTROPY_STEPS
    game = GAME if arm.critic_groups else {}
    by_sampled = step.by_completions(arm, curves["sampled"], 100.0)
    done = sum(float(record.get("actor/rollouts_done", 0.0)) for record in actor)
    return RunResult(
        arm=name,
        seed=seed,
        before={way: 100 * float(curve.y[0]) for way, curve in curves.items()},
        after={way: 100 * float(curve.y[chosen[way]]) for way, curve in curves.items()},
        curve=by_sampled,
        questions=questions,
        trained_tokens=float(tokens.y[-1]) if len(tokens) else 0.0,
        # Nothing is sampled for more SFT: its actor hands on far more answers than are trained on.
        completions=float(list(by_sampled)[-1]) if arm.best_validation else done,
        seconds=actor[-1]["time"] - actor[0]["time"],
        game={
            t: step.by_completions(arm, series(actor, f"actor/{metric}_mean")) for t, metric in game.items()
        },
        greedy=step.by_completions(arm, curves["greedy"], 100.0),
        chosen={way: int(list(step.by_completions(arm, curves[way]))[chosen[way]]) for way in WAYS},
        first_labels=first_accuracy(actor, FIRST_LABELS) if game else None,
        entropy=[float(np.mean(part)) for part in (entropy[:begin], entropy[-end:]) if len(part)],
    )


def write(
    path: Path, results: Sequence[RunResult], arms: Mapping[str, Arm], settings: Mapping[str, Any]
) -> None:
    """The table and every run's numbers, the same whatever the order in which the runs ended."""
    results = sorted(results, key=lambda run: (run.arm, run.seed))
    write_json(path, {**settings, "table": table(results, arms), "runs": [vars(run) for run in results]})


def kept(content: Mapping[str, Any]) -> list[RunResult]:
    """The runs of a file that `write` has written."""
    return [RunResult(**run) for run in content["runs"]]
