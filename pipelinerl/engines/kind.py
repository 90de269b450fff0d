"""What a kind of engine is: one object that says all that depends on `engine.kind`.

The launcher asks it (checks, choices, memory, commands), the trainer (type and names of the weights) and the
advice after the first steps; nobody compares `engine.kind` with a name. Neither torch nor vLLM may be
imported by the file of a kind. `serving/backend.py` is where the computing part of a kind of our own
begins; client, fleet, publisher and supervision know no kinds.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pipelinerl.config.choice import Choice
from pipelinerl.config.hosts import Host
from pipelinerl.config.machine import Job
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import ENGINE_KINDS, Variant
from pipelinerl.engines.received import DEFAULT, RECEIVED

Tensor = TypeVar("Tensor")
Why = Callable[..., str]
"""Of a key, the reason where nobody gave it and further keys: the reason in the table of choices."""
Row = tuple[str, str, str, str]
"""Of the table of choices: subject, what was chosen, because, what to change it with."""


@dataclass(frozen=True, kw_only=True)
class EngineStart:
    """What the launcher knows of an engine that it is going to start."""

    cfg: Config
    job: Job
    """Its address and its GPUs."""
    model: str
    """Folder or hub name of the weights that it loads."""
    host: Host
    """Where it runs."""
    gpus: Sequence[str]
    """Its GPUs as `CUDA_VISIBLE_DEVICES` of that host names them."""
    ahead: bool
    """Whether it receives weights while it generates."""
    routes: bool = False
    """Whether its answers say which experts each token went to."""


class EngineKind(Variant):
    """A kind of engine. What a subclass does not say is that of an engine on one device without options."""

    ignores: Mapping[str, str] = {
        "vllm_config": "this engine is not vLLM; leave it out",
        **{
            f"engine.{name}": "this engine has no such option; leave it out"
            for name in ("threads", "dtype", "max_prefill_tokens", "prefix_cache")
        },
    }
    """The keys that `served_command` hands to no engine; a kind that reads one of them lists the others."""
    length_key: str = "engine.max_model_len"
    """The key with which its own options bound a context."""
    requests_key: str | None = None
    """A key of its own options that bounds requests under way; None = `engine.max_num_seqs` alone does."""
    transports: Sequence[str] = tuple(RECEIVED)
    """Values of `weights.transport` that it can receive from."""
    other_transport: str = "this engine reads files; set file"
    """What is said of any other transport."""
    ahead: bool = False
    """Whether it can receive a version beside the weights that are served, as `weights.ahead` asks."""
    without_ahead: str = "this engine receives no version ahead"
    """Why `weights.ahead` means nothing to it, if so."""
    loads_adapters: bool = False
    """Whether it takes adapters alone and adds them to its weights, so that a token costs what it did."""
    without_adapters: str = "this engine takes whole weights"
    """Why `weights.lora=adapter` is not for it, if so."""
    planned: bool = False
    """Whether the memory plan of `launcher/memory_plan.py`, which is that of vLLM, holds for it on GPUs."""
    batches: bool = True
    """Whether more requests at the same time give more tokens a second."""
    stages: tuple[tuple[str, str], ...] = ()
    """Texts in its log while it starts, and what each begins."""

    def dtype(self, cfg: Config) -> str:
        """Type of its weights, `float32` or `bfloat16`."""
        return cfg.engine.dtype

    def cache_type(self, cfg: Config) -> str:
        """torch's name of the type in which it keeps keys and values."""
        return self.dtype(cfg)

    def cards(self, cfg: Config) -> int:
        """GPUs of one engine. Raises ConfigError for a number that it would refuse."""
        return 1

    def ranks(self, cfg: Config) -> int:
        """GPUs among which one copy of its weights is divided. Raises ConfigError as `cards`."""
        return 1

    def card_share(self, cfg: Config) -> float:
        """Share of each of its cards that it takes."""
        return 0.9

    def context_key(self, cfg: Config) -> str:
        """The key to change for longer or shorter contexts in this run."""
        return self.length_key

    def command(self, start: EngineStart) -> tuple[list[str], dict[str, str]]:
        """The command line of its server, and what it adds to the environment."""
        raise NotImplementedError

    def receiver_problem(self, transport: str, ahead: bool) -> str | None:
        """Why nothing of it receives from this one of `transports` in this way; None if something does."""
        return None

    def adapters_problem(self, cfg: Config) -> str:
        """Why its engines of this run take no adapters alone, though `loads_adapters`; empty if they do."""
        return ""

    def adapters_unproven(self, cfg: Config) -> str:
        """Why adapters travel alone to it only with `weights.lora=adapter`; empty if with `auto` too."""
        return ""

    def routes_problem(self, cfg: Config) -> str | None:
        """Why its engines cannot say the experts of tokens, and what to do; None where they can."""
        return f"engine.kind={self.name} does not say the experts of tokens; use another kind"

    def routes_unproven(self, cfg: Config) -> str:
        """Why experts of tokens are asked of it only with `finetune.rl.routing=replay`; empty if always."""
        return ""

    def of_states(self, cfg: Config) -> Iterator[Choice]:
        """Keys that it needs for a model whose layers have a state, where nobody has set them, and why."""
        return iter(())

    def choice(self, cfg: Config, shown: str, why: Why) -> tuple[str, str, str]:
        """Its row of the table: what was chosen, because, change with. `shown` are number and size."""
        others = ("engine.kind", "engine.max_num_seqs", "engine.max_model_len")
        return shown, why("engine.count", "", *others), "engine.count=N"

    def more_choices(self, cfg: Config, hosts: Sequence[Host], why: Why) -> Iterator[Row]:
        """Further rows, behind those of the memory."""
        return iter(())

    def remedies(self, cfg: Config, spare_cores: bool) -> Iterator[str]:
        """Keys with a value that make its engines faster, where they limit a run."""
        return iter(())

    def model_problems(self, text: dict[str, Any]) -> Iterator[str]:
        """What is wrong for its engines with a model's `config.json`, of which this is the decoder's part."""
        return iter(())

    def names(self, model_config: Any, tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        """The tensors of a version under the names that it loads, for a model with this configuration.

        Raises ValueError for names that it is not known to load.
        """
        return tensors


def served_command(module: str, start: EngineStart, **more: object) -> list[str]:
    """The command line of an engine on `engines/serving`, whose `__main__` is that of `module`.

    `more` are options of its own settings, by the names of their fields.
    """
    engine, job = start.cfg.engine, start.job
    options = {
        "model": start.model,
        "served_model_name": start.cfg.model_path,
        "host": job.hostname,
        "port": job.port,
        "max_num_seqs": engine.max_num_seqs,
        "max_model_len": engine.max_model_len,
        "max_waiting": engine.max_waiting,
        **more,
    }
    if (transport := start.cfg.weights.transport) != DEFAULT:
        options["weight_transport"] = transport
    # As vLLM in a run: policies that call it read ids.
    argv = [sys.executable, "-m", module, "--return-tokens-as-token-ids"]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def engine_kind(cfg: Config) -> EngineKind:
    """The kind of this run's engines."""
    return kind_named(cfg.engine.kind)


def eight_bits(cfg: Config) -> str | None:
    """torch's type in which the run's engines keep keys and values, where that has 8 bits; None otherwise."""
    found = engine_kind(cfg).cache_type(cfg)
    return found if found.startswith("float8") else None


def kind_named(name: str) -> EngineKind:
    """The kind that `engine.kind=NAME` means; for a tree that is not typed yet."""
    found: EngineKind = ENGINE_KINDS.find(name)
    return found
