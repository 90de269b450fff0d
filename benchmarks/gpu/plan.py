"""Which rows are measured in what order, on which cards and cores, with what limits. No side effects.

A plan has stages, one for each call that a machine may be borrowed for. A stage has phases, one after the
other; the lanes of a phase run beside each other, on cards and cores of their own, and the steps of a lane
one after the other. Work that keeps all cores busy (the bootstrap's data workers, compilers) shares a phase
with nothing that times an engine. Limits are what a step took on two H200s with 32 cores, and a quarter; with
one card, those of a stage fit into a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

TRAINER_CELLS = (
    "1.7B:trainer/compiled/selective",
    "1.7B:trainer/compiled/every-2",
    "1.7B:trainer/compiled/selective/mixed",
    "1.7B:trainer/compiled/full",
    "1.7B:trainer/compiled/none",
    "1.7B:sdpa",
    "0.6B:trainer/compiled/full",
    "0.6B:trainer/compiled/selective",
    "0.6B:trainer/compiled/none",
    "1.7B:varlen+chunked",
    "4B:trainer/compiled/full",
    "4B:trainer/compiled/selective",
    "0.6B:sdpa",
    "1.7B:trainer/eager/full",
    "1.7B:varlen",
)
"""In the order of what is missing from the table."""
SLOWER = 3.0
"""Limits of a rehearsal, on a machine that does other things too."""
SOFT_S = 40.0
"""Before a step's limit: what was begun then should still end."""
TINY_SHAPE = "bootstrap.shape={hidden: 64, layers: 2, heads: 2, kv_heads: 2, head_dim: 32, mlp: 128}"
TINY_WORLD = (
    "companies:2,test_companies:1,private_docs:24,web_docs:200,train_chains:24,val_chains:8,test_chains:8"
)
TINY_BOOTSTRAP = (
    TINY_SHAPE,
    "bootstrap.budget=0.001",
    "bootstrap.tokenizer_texts=300",
    "bootstrap.workers=1",
    "bootstrap.gate_demonstrations=100",
    "bootstrap.pack_tokens=8192",
    "bootstrap.vocab_size=512",
)
TINY_RUN = (
    f"privacy_hopqa.world={{{TINY_WORLD}}}",
    "privacy_hopqa.max_examples=4",
    "privacy_hopqa.retrieval_workers=1",
    "actor.llm_max_rollouts=16",
    "actor.rollout_workers=1",
    "finetune.max_train_steps=3",
    "finetune.gradient_accumulation_passes=16",
    "finetune.attempts=4",
    "max_lag=64",
    "preprocess.ring_buffer_size=256",
    "preprocess.max_ready_samples_per_lead=64",
)
VLLM_ON_CPU = (
    "engine.kind=vllm",
    "engine.start_deadline_s=600",
    "vllm_config.python={vllm}",
    "vllm_config.vllm_kwargs.dtype=float32",
    "vllm_config.vllm_kwargs.gpu-memory-utilization=null",
    '+vllm_config.vllm_kwargs.enforce-eager=""',
)
EVERY_CORE = (0.0, 1.0)
NEEDS_VLLM = ("benchmarks.gpu.engine", "benchmarks.gpu.several")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command with its limit.

    Filled in are `{work}`, `{out}`, `{limit}`, `{soft}` (after it nothing new is begun) and `{workers}`.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    limit_s: float
    least_s: float = 30.0
    """With less time left it is not started."""
    tiny: tuple[str, ...] | None = None
    """Arguments of the rehearsal without a card; None: it cannot be rehearsed."""
    tiny_with_vllm: tuple[str, ...] = ()
    """And where there is a CPU build of vLLM, whose interpreter is `{vllm}`."""
    launcher: tuple[str, ...] = ()
    """Words between the interpreter and the module, such as a launcher of several ranks."""


@dataclass(frozen=True)
class Lane:
    """Steps one after the other on cards (as CUDA_VISIBLE_DEVICES names them) and a share of the cores."""

    steps: tuple[Step, ...]
    cards: str = ""
    cores: tuple[float, float] = EVERY_CORE
    """From and to, as shares of the cores there are."""
    untimed: bool = False
    """Nothing in it is timed and it takes little memory: its cards may be those of another lane too."""

    def core_list(self, cores: int) -> str:
        """`taskset -c` notation, at least one core."""
        first = min(cores - 1, round(self.cores[0] * cores))
        last = max(first, round(self.cores[1] * cores) - 1)
        return f"{first}-{last}"


Phase = tuple[Lane, ...]
Stage = tuple[Phase, ...]


def bootstrap(limit_s: float, *overrides: str) -> Step:
    return Step(
        name="privacy_bootstrap",
        module="benchmarks.gpu.privacy",
        arguments=("bootstrap", *_privacy(), "bootstrap.workers={workers}", *overrides),
        tiny=("bootstrap", "--hardware", "cpu", *_privacy(), *TINY_BOOTSTRAP),
        limit_s=limit_s,
        least_s=240.0,
    )


def reinforcement(limit_s: float, *overrides: str) -> Step:
    return Step(
        name="privacy_rl",
        module="benchmarks.gpu.privacy",
        arguments=("rl", *_privacy(), *overrides),
        tiny=("rl", "--hardware", "cpu", *_privacy("rehearsal"), *TINY_RUN),
        tiny_with_vllm=VLLM_ON_CPU,
        limit_s=limit_s,
        least_s=180.0,
    )


def _privacy(folder: str = "privacy") -> tuple[str, ...]:
    return ("--work", f"{{work}}/{folder}", "--out", "{out}", "--limit", "{limit}")


def trainer(limit_s: float) -> Step:
    arguments = ("--repeats", "3", "--budget", "{soft}", "--out", "{out}", "--cells", *TRAINER_CELLS)
    return Step(name="trainer", module="benchmarks.gpu.trainer", arguments=arguments, limit_s=limit_s)


def tests(name: str, path: str, limit_s: float, *chosen: str) -> Step:
    arguments = ("-v", "--tb=short", "-p", "no:cacheprovider", "-m", "gpu", "--durations=5", path, *chosen)
    return Step(name=name, module="pytest", arguments=arguments, limit_s=limit_s, least_s=60.0)


def contract(column: str, limit_s: float) -> Step:
    """What every engine promises, on cards: one of the columns `gpu-...` of tests/contract."""
    chosen = f"gpu-{column}" if column.endswith("-ahead") else f"gpu-{column} and not ahead"
    return tests(f"contract_{column}", "tests/contract", limit_s, "-k", chosen)


def sharded(name: str, limit_s: float, *arguments: str) -> Step:
    return Step(
        name=name,
        module="benchmarks.gpu.sharded",
        arguments=(*arguments, "--out", "{out}"),
        limit_s=limit_s,
        launcher=("-m", "accelerate.commands.launch", "--num_processes", "2", "--mixed_precision", "no"),
    )


def engine(name: str, limit_s: float, *arguments: str, tiny: tuple[str, ...] | None) -> Step:
    common = ("--folder", "{work}/models", "--out", "{out}")
    return Step(
        name=name,
        module="benchmarks.gpu.engine",
        arguments=(*common, *arguments),
        tiny=None if tiny is None else (*common, "--cpu", *tiny),
        limit_s=limit_s,
        least_s=150.0,
    )


def async_sync(
    limit_s: float, *overrides: str, steps: int = 12, start_s: int = 150, window_s: int = 70
) -> Step:
    """The first start compiles (71 s), the second does not (56 s); a synchronous step takes 3.5 s.

    The limit may end the second run within its window: it then counts with the steps that it has made.
    """
    common = ("--work", "{work}/async_sync", "--out", "{out}")
    counted = ("--steps", str(steps), "--start", str(start_s), "--window", str(window_s))
    return Step(
        name="async_sync",
        module="benchmarks.async_sync",
        arguments=("--hardware", "gpu", *counted, *common, *overrides),
        tiny=("--hardware", "cpu", "--steps", "6", *common),
        limit_s=limit_s,
        least_s=150.0,
    )


def killed(limit_s: float, *overrides: str) -> Step:
    common = ("--work", "{work}/killed", "--out", "{out}", "--limit", "{limit}")
    return Step(
        name="engine_killed",
        module="benchmarks.gpu.killed",
        arguments=(*common, *overrides),
        tiny=("--hardware", "cpu", "--after", "4", *common),
        limit_s=limit_s,
        least_s=100.0,
    )


def several(limit_s: float) -> Step:
    common = ("--folder", "{work}/models", "--out", "{out}")
    return Step(
        name="several_engines",
        module="benchmarks.gpu.several",
        arguments=common,
        tiny=(*common, "--cpu", "--streams", "2"),
        limit_s=limit_s,
        least_s=100.0,
    )


TINY_ENGINE = ("--rows", "update", "parity", "throughput", "--variants", "1", "--in-flight", "2")
FIRST_HALF, SECOND_HALF = (0.0, 0.5), (0.5, 1.0)
SHARED = ("world.share_device=true",)


def beside(bootstrap: Step, card: str, cards: str, *overrides: str) -> Phase:
    """The bootstrap has half the cores and is in no hurry; beside it whatever is not timed, on all cards."""
    one = (tests("vllm_tests", "tests/gpu/test_vllm.py", 150), contract("file", 150), killed(150, *overrides))
    other = (contract("nccl-ahead", 150), contract("nccl", 150))
    return (
        Lane((bootstrap,), card, SECOND_HALF),
        Lane(one, cards, (0.0, 0.25), untimed=True),
        Lane(other, cards, (0.25, 0.5), untimed=True),
    )


PLANS: dict[str, tuple[Stage, ...]] = {
    "two_cards": (
        (  # a quiet host: nothing runs beside the engine
            (
                Lane(
                    (
                        engine(
                            "engine",
                            350,
                            *("--rows", "update", "parity", "throughput", "failure"),
                            *("--variants", "3", "--in-flight", "256", "512", "--api-servers", "0", "1"),
                            tiny=TINY_ENGINE,
                        ),
                        async_sync(290),
                    ),
                    "0,1",
                ),
            ),
        ),
        (beside(bootstrap(480), "1", "0,1"),),
        (
            (Lane((reinforcement(280), several(230), sharded("sharded", 90, "--size", "4B")), "0,1"),),
        ),
    ),
    "one_card": (
        (  # engine and trainer's side share it; NCCL has to allow that (benchmarks/gpu/cards.py)
            (
                Lane(
                    (
                        engine(
                            "engine",
                            330,
                            *("--rows", "update", "parity", "throughput", "failure", "--gpus", "0", "0"),
                            *("--variants", "4", "--in-flight", "256", "512", "--api-servers", "0"),
                            tiny=TINY_ENGINE,
                        ),
                        async_sync(240, *SHARED, steps=8, start_s=120, window_s=50),
                    ),
                    "0",
                ),
            ),
        ),
        # others use the card too: fewer tokens, so that a model is there at the limit
        (beside(bootstrap(510, "bootstrap.budget=0.8"), "0", "0", *SHARED),),
        (
            (
                Lane(
                    (
                        reinforcement(330, *SHARED),
                        engine(
                            "engine_files",
                            200,
                            *("--rows", "update", "parity", "--gpus", "0", "0", "--backends", "file_ahead"),
                            *("--variants", "2", "--in-flight", "256"),
                            tiny=("--backends", "file_ahead", *TINY_ENGINE),
                        ),
                    ),
                    "0",
                ),
            ),
        ),
        (
            (Lane((trainer(230),), "0"),),
        ),
    ),
}  # fmt: skip


def seconds_of(stage: Stage) -> float:
    """The longest that a stage can take: phases after each other, lanes beside each other."""
    return sum(max(sum(step.limit_s for step in lane.steps) for lane in phase) for phase in stage)


def limit_of(step: Step, left_s: float) -> float | None:
    """Seconds that a step gets when so many are left; None if it should not be started."""
    return None if left_s < step.least_s else min(step.limit_s, left_s)


def rehearsal(step: Step, vllm: str | None) -> Step | None:
    """The step on a machine without a card; `vllm` is the interpreter of a CPU build. None: cannot be."""
    if step.tiny is None or (step.module in NEEDS_VLLM and not vllm):
        return None
    arguments = (*step.tiny, *(filled(step.tiny_with_vllm, {"vllm": vllm}) if vllm else ()))
    return replace(step, arguments=arguments, limit_s=step.limit_s * SLOWER)


def filled(arguments: Sequence[str], values: dict[str, str]) -> list[str]:
    """Arguments with `{name}` replaced; other braces, of configuration values, stay as they are."""
    done = []
    for argument in arguments:
        for name, value in values.items():
            argument = argument.replace(f"{{{name}}}", value)
        done.append(argument)
    return done
