"""Measured claims in the sentences of the READMEs are those of their JSON, to the digits that are shown."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.claims import (
    chaos,
    critic_profile,
    decoding_rounds,
    gate,
    groups_profile,
    language_shares,
    prefix_cache,
    raro_curves,
    raro_ends,
    raro_game,
    recorded,
    speed,
)
from tests.support.measured import (
    ENGINE,
    GPU,
    NUMBER,
    PRIVACY,
    RARO,
    REPUTATION,
    RETRIEVAL,
    ROOT,
    figure,
    is_shown,
    ppo,
    result,
)

ENDS = ("before", "after")

SENTENCES: dict[str, tuple[str, str, Callable[[], list[float]]]] = {
    "random faults": (
        "docs/faults.md",
        r"of (\d+) faults in (\d+) strikes .*?: (\d+) times the run went on, (\d+) times it ended by name, "
        r"(\d+) times it was complete by then; the longest took (\S+) s",
        chaos,
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
    "quickstart, shared prefixes": (
        "README.md",
        r"seeds 0 and 1,.*?trains (\S+) times as many texts a second as one that shares\s+nothing, "
        r"and (\S+) times.*?higher by (\S+) \[(\S+), (\S+)\].*?leakage differs by\s+(\S+) \[(\S+), (\S+)\]",
        lambda: [
            figure("sharing", "shared / nothing"),
            figure("sharing", "shared / trainer"),
            *(
                figure("sharing", f"{metric} after, shared - nothing{end}")
                for metric in ("success", "leak")
                for end in ("", ", lower end", ", upper end")
            ),
        ],
    ),
    "GPU, shared prefixes": (
        "README.md",
        r"took (\S+) samples a second instead of (\S+)\s+where groups of 8 .*?"
        r"and (\S+) instead of (\S+) where",
        lambda: [
            figure("gpu_shared", f"{work}: fastest {way}")
            for work in ("groups", "critic")
            for way in ("shared", "unshared")
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
    "shared prefixes of a critic": (
        GPU,
        r"Of the (\S+) tokens of those groups (\S+) are computed, (\S+)\s+times fewer.*?"
        r"gathered keys, (\d+) ms\).*?"
        r"products\*\*, (\d+) ms, fall (\S+) times: .*? the (\S+) sampled.*?"
        r"Attention\*\*, (\d+) ms, falls (\S+) times: .*?work\*\*, (\d+) ms, falls (\S+) times\..*?"
        r"Gathering\*\*, (\d+) ms, is new.*?need (\d+) ms for it, and (\d+) ms more.*?"
        r"Idle time\*\*, (\d+) ms, falls (\S+) times, and the \*\*optimizer\*\*, (\d+) ms.*?"
        r"would be (\d+\.\d+)\.",
        critic_profile,
    ),
    "shared prefixes of groups of 8": (
        GPU,
        r"samples have (\S+) tokens for each\s+computed one; per sample matrix products fall (\S+) times and "
        r"attention (\S+) times",
        groups_profile,
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
    "prefix cache, the recorded requests": (
        ENGINE,
        r"three runs of (\S+) to (\S+); (\d+) prompt and (\d+) sampled tokens each on average",
        lambda: [
            min(recorded("requests")),
            max(recorded("requests")),
            *(
                sum(recorded(what)) / sum(recorded("requests"))
                for what in ("prompt_tokens", "sampled_tokens")
            ),
        ],
    ),
    "prefix cache, what it gains": (
        ENGINE,
        r"take (\S+) to (\S+) times fewer seconds of a core with the cache; "
        r"of the last run's prompt tokens (\d+) % are\s+found\. "
        r"With an update after every (\d+) requests, .*?, it is (\S+) to (\S+) times, and (\d+) %",
        lambda: [
            *prefix_cache("recorded requests", "ratio of"),
            figure("prefix_cache", "recorded requests: prompt tokens found, recording 2"),
            float(result("prefix_cache")["settings"]["updates"]),
            *prefix_cache("an update every 128", "ratio of"),
            figure("prefix_cache", "an update every 128: prompt tokens found, recording 2"),
        ],
    ),
    "prefix cache, decoding alone": (
        ENGINE,
        r"share nothing and decode (\d+)\s+tokens each take (\S+) times fewer, "
        r"five rounds between (\S+) and (\S+): as fast",
        lambda: [
            float(result("prefix_cache_decoding")["settings"]["output"]),
            figure("prefix_cache_decoding", "decoding: ratio, all rounds"),
            min(decoding_rounds()),
            max(decoding_rounds()),
        ],
    ),
    "retrieval, building an index": (
        RETRIEVAL,
        r"ids: (\S+) MB and (\S+) s for 100,000 documents\s+of (\d+) words",
        lambda: [
            figure("retrieval", "100000 bm25s: memory of the build"),
            figure("retrieval", "100000 bm25s: index built"),
            float(result("retrieval")["settings"]["words"]),
        ],
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
    "arms, texts until the outcome arm's success": (
        PRIVACY,
        r"final success they took (\S+) and (\S+) of its texts with two\s+seeds and never reached it",
        lambda: [
            float(share)
            for share in result("arms")["gates"]["O3 goal: a third of the texts"]["figures"]
            .rpartition(":")[2]
            .split(",")
            if share.strip() != "inf"
        ],
    ),
    "arms, leakage by texts": (
        PRIVACY,
        r"In (\S+) texts\s+`outcome` added (\S+) \[(\S+), (\S+)\] of leakage, in (\S+) (\S+)\. With",
        lambda: [
            result("arms_decisions")["texts"],
            *gate("O2 outcome raises leakage", "arms_decisions")[:3],
            result("arms")["texts"],
            gate("O2 outcome raises leakage")[0],
        ],
    ),
    "RARO, the critic": (
        RARO,
        r"right in (\S+) of its committed verdicts at\s+first and in (\S+) to (\S+) of them at the end",
        lambda: [
            float(np.mean(raro_game("critic accuracy")[0])),
            min(raro_game("critic accuracy")[1]),
            max(raro_game("critic accuracy")[1]),
        ],
    ),
    "RARO, ties": (
        RARO,
        r"are (\d+) to (\d+) % of the verdicts in the first five steps and (\d+) to (\d+) % in the last",
        lambda: [100 * end(steps) for steps in raro_game("ties") for end in (min, max)],
    ),
    "RARO, the goal": (
        RARO,
        r"of 0\.90 of the verifier's gain is missed \((\S+)\), .*? differ widely \((\S+) to\s+(\S+)\)",
        lambda: [
            result("raro")["table"]["sampled"]["gain ratio"]["ratio"],
            *(
                end(run["after"]["greedy"] for run in result("raro")["runs"] if run["arm"] == "raro")
                for end in (min, max)
            ),
        ],
    ),
    "RARO, what more SFT became": (
        RARO,
        r"it fell from about (\d+) to (\d+) and ended at (\S+) to (\S+), so that",
        lambda: [
            float(np.mean([curve[0] for curve in raro_curves("sft")])),
            float(np.mean([min(curve) for curve in raro_curves("sft")])),
            min(curve[-1] for curve in raro_curves("sft")),
            max(curve[-1] for curve in raro_curves("sft")),
        ],
    ),
    "reputation, what was not reached": (
        REPUTATION,
        r"not met by any recipe \((\S+) to (\S+) with `strong`\), and at 0\.65 `base` learns\s+"
        r"nothing \((\S+), (\S+) and (\S+)\)",
        lambda: [
            *(end(ppo("strong", 0.7, seed)["deterministic"] for seed in range(3)) for end in (min, max)),
            *(ppo("base", 0.65, seed)["deterministic"] for seed in range(3)),
        ],
    ),
    "reputation, the language model": (
        REPUTATION,
        r"holds on all three seeds\*\* \((\S+) to (\S+); drawn answers (\S+) to (\S+)\)",
        lambda: [end(language_shares(drawn)) for drawn in (False, True) for end in (min, max)],
    ),
    "reputation, the ladder": (
        REPUTATION,
        r"random (\S+), all-HELP (\S+), all-SIGNAL (\S+), rule (\S+), fitted linear rule (\S+)\.\s",
        lambda: [
            one["share"] for one in result("reputation_language")["ladder"] if one["policy"] != "optimum"
        ],
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
