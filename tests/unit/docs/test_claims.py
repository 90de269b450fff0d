"""Measured claims in the sentences of the READMEs are those of their JSON, to the digits that are shown."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.measured import GPU, NUMBER, PRIVACY, RARO, REPUTATION, ROOT, figure, is_shown, result

ENDS = ("before", "after")


def raro_ends() -> list[float]:
    """The policy's reward, mean over seeds of the first five and the last five steps."""
    runs = [list(run["game"]["policy reward"].values()) for run in result("raro")["runs"] if run["game"]]
    return [float(np.mean([run[:5] for run in runs])), *(float(np.mean(run[-5:])) for run in runs)]


def gate(name: str, file: str = "arms") -> list[float]:
    """Difference, interval and differences by seed, as the file tells them."""
    told = result(file)["gates"][name]["figures"]
    return [float(number) for number in NUMBER.findall(re.sub(r"n=\d+", "", told))]


def speed(*keys: str) -> float:
    found = result("reputation")["speed"]
    for key in keys:
        found = found[key]
    return float(found)


def forwards(model: str) -> list[float]:
    """Ratios of the embedded engine's two forwards."""
    return [
        figure("forwards", f"{model}: {kind}, ratio")
        for kind in ("32 decodes", "one decode", "a prompt of 256")
    ]


SENTENCES: dict[str, tuple[str, str, Callable[[], list[float]]]] = {
    "fused forward of a Llama": (
        "docs/engine.md",
        r"a Llama of 5M this takes (\S+) times.*?, (\S+) times with one, and (\S+) times for a prompt of 256 "
        r"tokens; for SmolLM2-135M (\S+) (\S+) and (\S+) times",
        lambda: [*forwards("5M"), *forwards("smollm2")],
    ),
    "57M, success and leakage": (
        "README.md",
        r"went from\s+(\S+) to (\S+) success and from (\S+) to (\S+) leakage in (\d+) seconds",
        lambda: [
            *(
                figure("gpu_privacy_rl", f"rl: {metric}, {when}")
                for metric in ("success", "leak")
                for when in ENDS
            ),
            figure("gpu_privacy_rl", "rl: from the first to the last record"),
        ],
    ),
    "57M, how the model was made": (
        GPU,
        r"(\S+) million tokens in (\S+) s on one card.*?, (\S+)k tokens/s, an MFU of (\S+) % .*?"
        r"\(`read_yes` (\S+), `choose_first` (\S+), `choose_other` (\S+), `resolve_yes` (\S+)\)",
        lambda: [
            figure("gpu_privacy_bootstrap", f"bootstrap: {name}") / unit
            for name, unit in (
                *(("tokens", 1), ("everything", 1), ("training rate", 1000), ("MFU", 1)),
                *(
                    (f"{kind} right", 1)
                    for kind in ("read_yes", "choose_first", "choose_other", "resolve_yes")
                ),
            )
        ],
    ),
    "57M, how it was trained": (
        GPU,
        r"(\d+) steps of 256 texts in (\d+) s \((\d+) texts/s,.*?"
        r"Tokens are (\S+) texts old on average, the\s+importance ratio is (\S+), "
        r"engine and trainer are (\S+) nats apart .*?"
        r"pauses the engine\s+for (\d+) ms .*?, (\S+) % of the time at",
        lambda: [
            figure("gpu_privacy_rl", f"rl: {name}") * unit
            for name, unit in (
                ("optimizer steps", 1),
                ("from the first to the last record", 1),
                ("trained texts", 1),
                ("age of trained tokens, mean", 1),
                ("importance ratio, mean", 1),
                ("parity_mean_abs, largest", 1),
                ("engine paused by an update, median", 1),
                ("share of the time paused", 100),
            )
        ],
    ),
    "4B over two cards": (
        GPU,
        r"trains at (\S+) tokens/s on each \(MFU (\S+) %, (\d+) % of one card alone\) in (\S+) GB instead of "
        r"(\S+), and needs (\d+) ms to\s+gather",
        lambda: [
            figure("gpu_sharded", "tokens of each GPU"),
            figure("gpu_sharded", "MFU"),
            100
            * figure("gpu_sharded", "tokens of each GPU")
            / figure("gpu_trainer", "4B trainer/compiled/full: tokens"),
            figure("gpu_sharded", "peak memory of a GPU"),
            figure("gpu_trainer", "4B trainer/compiled/full: peak memory"),
            figure("gpu_sharded", "gathering weights for engines"),
        ],
    ),
    "memory of log-probabilities": (
        GPU,
        r"Log-probabilities take (\S+) to (\S+) GB",
        lambda: [figure("gpu_trainer", f"{size} loss: peak memory") for size in ("0.6B", "4B")],
    ),
    "vLLM's HTTP side": (
        GPU,
        r"core that is still (\d+) us .*? and (\S+) ms for a call of 100 .*?"
        r"occupy a process for (\S+) s\..*?they would occupy it for (\S+) s, "
        r"but a short call would cost (\d+) % more",
        lambda: [
            figure("vllm_front", "0.26, 1 process, client: a token of 512"),
            figure("vllm_front", "0.26, 1 process, client: a short call") / 1000,
            *(
                figure(
                    "vllm_front",
                    f"0.26, 1 process, {way}: 64 answers of 512 that end together, until the last",
                )
                / 1000
                for way in ("client", "streamed")
            ),
            100
            * (
                figure("vllm_front", "0.26, 1 process, streamed: a short call")
                / figure("vllm_front", "0.26, 1 process, client: a short call")
                - 1
            ),
        ],
    ),
    "turns and no turns on a CPU": (
        GPU,
        r"tail: (\S+) times the steps per second on two CPU cores",
        lambda: [figure("async_sync_cpu", "asynchronous / synchronous, steps per second")],
    ),
    "four hops, leakage": (
        PRIVACY,
        r"leakage\s+fell: (\S+) \[(\S+), (\S+)\] in some 2,000 texts, (\S+) \[(\S+), (\S+)\] in 640",
        lambda: [
            float(number)
            for file in ("arms_four_hops", "arms_four_hops_640")
            for number in NUMBER.findall(
                result(file)["gates"]["O2 outcome raises leakage"]["figures"].partition("]")[0]
            )
        ],
    ),
    "two GPUs, intent": (
        PRIVACY,
        r"give away what is researched went from (\S+) to (\S+)\s+while leakage fell from (\S+) to (\S+);",
        lambda: [
            result("gpu_privacy_rl")["evaluations"][version][metric]["mean"]
            for metric in ("leak_intent", "leak")
            for version in ("0", "30720")
        ],
    ),
    "arms, leakage of outcome rewards": (
        PRIVACY,
        r"makes the agent leak more than it did \((\S+) \[(\S+), (\S+)\], paired\)",
        lambda: gate("O2 outcome raises leakage")[:3],
    ),
    "arms, cost of the penalty": (
        PRIVACY,
        r"costs no success \((\S+) to (\S+) against `outcome`\)",
        lambda: gate("O5 goal: not 5 points below outcome")[1:3],
    ),
    "arms, leakage by seed": (
        PRIVACY,
        r"`outcome` adds (\S+), (\S+) and (\S+) of leakage, "
        r"while the penalty takes off (\S+), (\S+) and (\S+)\.\n",
        lambda: [
            *gate("O2 outcome raises leakage")[-3:],
            *(-x for x in gate("O4 penalty lowers leakage")[-3:]),
        ],
    ),
    "arms, padding": (
        PRIVACY,
        r"success is higher \((\S+) \[(\S+), (\S+)\], paired; by seed (\S+) and (\S+)\)\. "
        r"Leakage\s+is, too \((\S+) \[(\S+), (\S+)\]\)",
        lambda: [
            *gate("padding raises success", "arms_padded"),
            *gate("padding raises leak", "arms_padded")[:3],
        ],
    ),
    "reputation, speed": (
        REPUTATION,
        r"makes (\S+) M steps a second at\s+N = 4096 with tape drawing \(goal 5 M\), "
        r"(\S+) M at 16 and (\S+) M at 1; the single environment (\S+) k\. "
        r"PPO makes (\S+) k\s+steps a second with 256 environments, (\d+) times",
        lambda: [
            *(speed("batch_env_steps_per_s", count) / 1e6 for count in ("4096", "16", "1")),
            speed("single_env_steps_per_s") / 1e3,
            speed("ppo_batch_256_steps_per_s") / 1e3,
            speed("ppo_ratio"),
        ],
    ),
    "RARO, gain ratio": (
        RARO,
        r"sampled: (\S+) \[(\S+), (\S+)\]\. Greedy: (\d\.\d+)",
        lambda: [
            *(result("raro")["table"]["sampled"]["gain ratio"][key] for key in ("ratio", "low", "high")),
            result("raro")["table"]["greedy"]["gain ratio"]["ratio"],
        ],
    ),
    "RARO, falling policy reward": (
        RARO,
        r"it goes from (\S+) \(mean of the first five steps\) to\s+(\S+), (\S+) and (\S+) \(last five\)",
        raro_ends,
    ),
    "RARO, more SFT": (
        RARO,
        r"RARO beats more SFT by at least (\S+) points",
        lambda: [
            (gain := result("raro")["table"]["sampled"]["raro - sft"])["mean"] - gain["half_width"],
        ],
    ),
}


@pytest.mark.parametrize("name", list(SENTENCES))
def test_claims_in_sentences_are_those_of_their_json(name: str) -> None:
    page, pattern, values = SENTENCES[name]
    (found,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    written = [found] if isinstance(found, str) else list(found)
    wanted = values()
    assert len(written) == len(wanted)
    for one, value in zip(written, wanted):
        assert is_shown(one.rstrip(","), value), f"{one}, in the JSON {value:.5g}"


def test_more_supervised_training_is_the_warm_model() -> None:
    """As the raro page says: the best version by validation is the one before training, with every seed."""
    runs = [run for run in result("raro")["runs"] if run["arm"] == "sft"]
    assert runs and all(run["after"] == run["before"] for run in runs)
    assert "version 0 with every seed" in (ROOT / RARO).read_text(encoding="utf-8")
