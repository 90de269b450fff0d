"""Measured claims in the sentences on engines, trainers and runs on cards: page, pattern and values of each.

`tests/unit/docs/test_claims.py` compares them and those of the domains.
"""

from functools import partial

from benchmarks.gpu.several_hosts import PAUSE_GOAL, STEP_GOAL
from tests.support.claims import (
    Claim,
    chaos,
    critic_profile,
    decoding_rounds,
    forwards,
    groups_profile,
    halves_of_a_host,
    prefix_cache,
    recorded,
)
from tests.support.measured import (
    ENGINE,
    GPU,
    RETRIEVAL,
    figure,
    result,
)

ENDS = ("before", "after")
TWO = ("two_nodes", "two_hosts")
"""Arms of `benchmarks.gpu.several_hosts` on two hosts."""

MACHINES: dict[str, Claim] = {
    "random faults": (
        "docs/faults.md",
        r"of (\d+) faults in (\d+) strikes .*?: (\d+) times the run went on, (\d+) times it ended by name, "
        r"(\d+) times it was complete by then; the longest took (\S+) s",
        chaos,
    ),
    "several machines, what Ray costs on one": (
        "docs/several_machines.md",
        r"take (\S+) % of a core, (\S+) % of that host;.*?"
        r"for a\s+step (\S+) times \[(\S+), (\S+)\] the processor"
        r"\s+time, and it makes (\S+) times \[(\S+), (\S+)\] the steps per second",
        lambda: [
            figure("hosts_cost", name)
            for name in (
                "Ray's own processes",
                "Ray's own processes, of this host",
                "processor time of a step with Ray / without",
                "  lower end of 95 %, processor time",
                "  upper end of 95 %, processor time",
                "steps per second with Ray / without",
                "  lower end of 95 %",
                "  upper end of 95 %",
            )
        ],
    ),
    **{
        f"several machines, cards, {row}": (
            "docs/several_machines.md",
            rf"\| {row} \| (\S+) \| (\S+) ms \| (\S+) ms \| (\S+) ms \| (\S+) ms \|",
            partial(halves_of_a_host, arm),
        )
        for row, arm in (
            ("one host, without Ray", "local"),
            ("two Ray nodes, connected directly", "two_nodes"),
            ("two hosts, sockets", "two_hosts"),
        )
    },
    "several machines, cards, ratios": (
        "docs/several_machines.md",
        r"a pause is (\S+) and (\S+) times that of one host \(goal (\S+)\).+a sharded step takes (\S+) "
        r"and (\S+) times as long \(goal (\S+)\).+for (\S+) ms of computing.+"
        r"their first process (\S+) s later",
        lambda: [
            *(figure("gpu_several_hosts", f"{arm} / local: paused by an update") for arm in TWO),
            PAUSE_GOAL,
            *(figure("gpu_several_hosts", f"{arm} / one host: sharded step") for arm in TWO),
            STEP_GOAL,
            result("gpu_several_hosts")["rows"]["step"][0]["sharded"]["a micro-batch"]["value"],
            figure("gpu_several_hosts", "two_nodes beyond local: to the first process"),
        ],
    ),
    "several machines, a folder on NFS": (
        "docs/several_machines.md",
        r"`Path\.exists` after (\S+) s, and for the look that processes of a run take after (\S+) s at most",
        lambda: [figure("network_folder", name) for name in ("Path.exists: median", "is_there: longest")],
    ),
    "fused forward of a Llama": (
        "docs/engine.md",
        r"a Llama of 5M this takes (\S+) times.*?, (\S+) times with one, and (\S+) times for a prompt of 256 "
        r"tokens; for SmolLM2-135M (\S+) (\S+) and (\S+) times",
        lambda: [*forwards("5M"), *forwards("smollm2")],
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
    "beside TRL": (
        GPU,
        r"while it compiled, at (\S+) a second.*?that is (\S+) times its samples and (\S+) times its trainer"
        r"; against its defaults (\S+)\s+times its samples and (\S+) times its trainer\.",
        lambda: [
            figure("gpu_trl_defaults", "ours: trained in the steps that count"),
            figure("gpu_trl", "ours / trl_tuned"),
            figure("gpu_trl", "ours / trl_tuned, trainers alone"),
            figure("gpu_trl_defaults", "ours / trl"),
            figure("gpu_trl_defaults", "ours / trl, trainers alone"),
        ],
    ),
    "the engine's process": (
        GPU,
        r"vLLM 0.26 needs\s+(\S+) us of that core.*?(\S+) cores at (\S+) tokens/s.*?overlap takes (\S+) ms: "
        r"(\S+) are kernels, of which (\S+)\s+read keys and values, and (\S+) the process.*?"
        r"would sample (\S+)\s+tokens/s",
        lambda: [
            *(
                figure("gpu_engine", f"  client, 256 always in flight: EngineCore, {what}")
                for what in ("CPU per token", "busiest")
            ),
            figure("gpu_engine", "client, 256 always in flight"),
            *(
                figure("gpu_decode", name)
                for name in (
                    "a step without overlap",
                    "kernels",
                    "  attention",
                    "the process",
                    "tokens, if only the card limited",
                )
            ),
        ],
    ),
    "the engine's prefix cache": (
        GPU,
        r"That is (\S+) times; the goal of 2\.5.*?wave falls from (\S+) to\s+(\S+) s",
        lambda: [
            figure("gpu_prefixes", "with the cache / without"),
            *(512 / figure("gpu_prefixes", f"cache {name}") for name in ("off", "on")),
        ],
    ),
    "shared prefixes of a critic": (
        GPU,
        r"Of the (\S+) tokens of those groups (\S+) are computed, (\S+)\s+times fewer.*?"
        r"levels, (\d+) ms\).*?"
        r"products\*\*, (\d+) ms, fall (\S+) times: .*? the (\S+) sampled.*?"
        r"Attention\*\*, (\d+) ms, falls (\S+) times: .*?work\*\*, (\d+) ms, falls (\S+) times: .*?"
        r"Gathering\*\*, (\d+) ms, is new.*?readers cost (\d+) ms.*?"
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
    "retrieval, several servers": (
        RETRIEVAL,
        r"two servers give (\S+)\s+times the (\S+) searches a second of one \(([\d,]+) documents; (\S+) "
        r"ms of CPU in the server, (\S+) ms.*?longest pause is (\d+) ms.*?its own is at most (\S+);",
        lambda: [
            figure("replicas", "2 servers: rate of 1 server"),
            figure("replicas", "1 server: searches"),
            float(result("replicas")["settings"]["documents"]),
            figure("replicas", "1 server: CPU of a search, server"),
            figure("replicas", "1 server: CPU of a search, client"),
            figure("replicas", "a server killed under load: longest pause of all searches"),
            figure("replicas", "1 server on a core of its own, at most"),
        ],
    ),
}
