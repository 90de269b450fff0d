"""Configuration of the machine: hardware, placement, jobs, streams, wandb, debug modes."""

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from pipelinerl.base.errors import ConfigError, suggestion
from pipelinerl.config.base import Section
from pipelinerl.config.card_limit import EngineReads
from pipelinerl.config.finetune import Checkpointing
from pipelinerl.config.variants import HOST_BACKENDS, STREAM_BACKENDS

JobKind = Literal[
    "actor_llm", "preprocessor_llm", "actor", "preprocessor", "environment", "finetune", "service"
]


HALF = 4
"""The share of engines and of the trainer where nobody says otherwise."""


class HardwareConfig(Section):
    """Hardware that the run may use."""

    kind: Literal["cpu", "gpu"] = "gpu"
    """`cpu` or `gpu`; chosen with the group override `hardware=cpu`, otherwise `gpu` if a GPU is visible."""
    threads_per_process: int = Field(1, ge=1)
    """Threads of torch in each process; embedded engines have `engine.threads`."""
    devices: Annotated[int, Field(ge=0)] | str = 0
    """GPUs of each host that the run may use; 0 = all visible ones. A dry run and `validate` accept imagined
    cards too, such as `4xH100-80GB`."""


class WorldConfig(Section):
    """Shares of the devices and the ports of the roles."""

    actor_fraction: int | None = Field(None, ge=0)
    """Share of the devices for inference engines, relative to the other fractions. If it and
    `finetune_fraction` are null, the launcher chooses the division that by its estimate trains most tokens,
    where it can; otherwise null counts as 4."""
    preprocessor_fraction: int = Field(0, ge=0)
    """Share of the devices for reference engines; 0: preprocess itself computes reference scores. On a CPU,
    any other value starts one engine."""
    finetune_fraction: int | None = Field(None, ge=0)
    """Share of the devices for trainer ranks, which also get the remainder of rounding; null: see
    `actor_fraction`, or 0 with `debug.mode=evaluate`."""
    replicas: Literal[1] = 1
    """Kept for old configurations; only 1 is possible."""
    env_replicas: int = Field(1, ge=0)
    """Servers of each environment. Environments named after domains of `actor.domain_mix` get their domain's
    share, rounded up."""
    env_replicas_per_actor: int | None = Field(None, ge=0)
    """Servers of each environment per engine, instead of `env_replicas`; an environment's own
    `replicas_per_actor` replaces both."""
    environment_mode: str = "remote"
    """`remote` starts servers of environments whose own `mode` is not another; any other value starts
    none."""
    share_device: bool = False
    """Let engine and trainer share the GPU of a run that has only one."""
    actor_group_port: int = Field(9000, ge=1, le=65535)
    """First port tried for the weight-transfer group."""
    environment_start_port: int = Field(7777, ge=1, le=65535)
    """First port tried for environment servers."""
    reference_start_port: int = Field(8180, ge=1, le=65535)
    """First port tried for reference engines."""
    service_start_port: int = Field(7000, ge=1, le=65535)
    """First port tried for the services of a domain (retrieval, scoring)."""
    backend: Annotated[str, HOST_BACKENDS] = "local"
    """`ray`: the hosts of a running Ray cluster, the launcher's first; `local`: this host."""
    hosts: int | None = Field(None, ge=1)
    """Hosts to use, waited for up to `engine.start_deadline_s`; null = all that are alive, on GPUs those with
    some. A dry run and `validate` imagine them, 2 if null."""
    ray_address: str = "auto"
    """Address of the Ray cluster; `auto`: `RAY_ADDRESS`, or the only cluster to which this host belongs."""
    actor_hosts: int | None = Field(None, ge=0)
    """How many hosts, counted from the last one, have only engines; null: on GPUs the fractions decide, on
    CPUs all but the first. Each other CPU host has a trainer rank."""
    interface: str | None = None
    """Network interface of NCCL and gloo between hosts; null = the interface with the host's address."""

    @property
    def fractions(self) -> tuple[int, int, int]:
        """Shares of engines, reference engines and trainer."""
        actor, trainer = (
            HALF if one is None else one for one in (self.actor_fraction, self.finetune_fraction)
        )
        return actor, self.preprocessor_fraction, trainer


class Job(Section):
    """One process of the run and where it lives."""

    kind: JobKind
    """Role of the process."""
    idx: int
    """Index over all jobs; `--job IDX` selects it."""
    replica_idx: int = 0
    """Index among the jobs of the same kind."""
    local_idx: int = 0
    """Index among the jobs of the same kind on this host."""
    node_rank: int = 0
    """Host that runs the job; 0 is the launcher's."""
    hostname: str = "127.0.0.1"
    """Host at which the other roles reach it."""
    port: int | None = None
    """Port of its server; of a trainer on several hosts, that of their rendezvous; None for any other job."""
    gpus: list[int] = []
    """Devices given to it, counted on its host; empty on the CPU."""
    url: str = ""
    """Base address of its server, empty without one."""
    environment_key: str | None = None
    """Key of the environment it serves."""
    environment_index: int | None = None
    """Index among the servers of that environment."""
    name: str = ""
    """Name of the process: its folder below `output_dir` and its name in messages."""


class DerivedConfig(Section):
    """What follows from the keys and the placement. The launcher computes it once; no role does again."""

    trainer_ranks: int = Field(ge=1)
    """Processes of the trainer."""
    texts_per_step: int = Field(ge=1)
    """B: samples of one optimizer step, rounded up to a multiple of the ranks, or of their groups
    where several compute a row (`finetune.seq_parallel`)."""
    texts_per_update: int = Field(ge=1)
    """Samples between two published weight versions: `weight_update_interval` rounded up to whole steps."""
    compile: bool | Literal["later"] = False
    """Whether the trainer compiles the layers: at its start, or `later`, as soon as that will pay."""
    gradient_checkpointing: Checkpointing = False
    """What the trainer recomputes while its layers are not compiled, or if they never are."""
    compiled_checkpointing: Checkpointing = False
    """What it recomputes in compiled layers."""
    whole_on_host: bool = False
    """Whether the copy of sharded weights that is gathered for the engines lies in host memory in between."""
    returns_routes: bool = False
    """Whether engines say which experts each token went to."""
    engine_reads: EngineReads | None = None
    """What an engine reads to sample a token; None on a CPU and where model or cards are not known."""
    filled: dict[str, Any] = {}
    """Keys that the start filled in (data that the domain prepared, addresses of servers), with the values
    that they had before, which a resume is given again."""


class StreamsConfig(Section):
    """How records travel between processes. Chosen with the group override `streams=files` or
    `streams=redis`."""

    backend: Annotated[str, STREAM_BACKENDS] = "files"
    """Stream back-end: files below `output_dir`, or a redis server."""
    max_unread: int | None = Field(None, ge=1)
    """Records by which a writer may be ahead of the slowest reader; null = any number."""
    trim: bool = False
    """Free records that every reader has finished with (on disk: whole segments of 64 MiB)."""
    deadline_s: float = Field(3600.0, gt=0)
    """Longest wait of a writer for the slowest reader; then the run ends."""
    host: str | None = None
    """Host of an existing redis server; null = the launcher starts one, on the loopback interface if the run
    has one host."""
    port: int = Field(11000, ge=1, le=65535)
    """Port of the redis server; of the launcher's own, the first port tried."""
    save: str = "3600 1"
    """When the launcher's own server writes its data to disk (redis' `save`); "" = never."""
    password: SecretStr | None = None
    """Password of the server, needed if `host` is another machine. The launcher makes one for its own server
    if null."""
    namespace: str | None = None
    """Part of this run's redis keys, for a server that several machines share; null = the run's folder."""

    @property
    def is_local(self) -> bool:
        """Whether the server is reached over the loopback interface."""
        return self.host in (None, "localhost", "::1") or str(self.host).startswith("127.")


class WandbConfig(Section):
    """Weights & Biases: one run for all roles, sent by a separate process; offline without a key or
    `WANDB_MODE`."""

    use_wandb: bool = True
    """Write a wandb run, unless `WANDB_MODE=disabled`; `metrics.jsonl` is always written."""
    wandb_id: str | None = None
    """Run id; null: the path of the run's folder below `wandb_workspace_root`, or its whole path if it lies
    elsewhere."""
    wandb_entity_name: str | None = None
    """Entity that owns the run."""
    wandb_project_name: str = "pipeline-rl"
    """Project of the run."""
    wandb_group: str | None = None
    """Group of the run, such as the name of an experiment."""
    wandb_dir: str | None = None
    """Where wandb writes its files; the run's folder when null."""
    wandb_resume: Literal["always", "if_not_interactive", "never"] = "always"
    """`never`: wandb refuses a run of the same id; otherwise it is continued (wandb's `resume=allow`)."""
    wandb_workspace_root: str = "results"
    """The wandb run is named by the path of its folder relative to this folder, or by the folder's own name
    if it lies elsewhere."""
    tags: list[str] = []
    """Tags of the run."""


class ObserveConfig(Section):
    """Files that a run leaves for people to read."""

    rollout_page: bool = True
    """Write the page of rollouts with the report, `report/rollouts/index.html`."""
    rollouts_per_version: int = Field(4, ge=0)
    """Groups of each weight version that stay on disk where streams are trimmed or in redis, besides the
    first and the last 5 % of the samples; 0 = none."""


class WatchdogConfig(Section):
    """When the launcher ends a run that is stuck. Engines and other servers have
    `engine.stall_deadline_s`."""

    silent_deadline_s: float = Field(120, gt=0)
    """Time without a sign of life after which actor, preprocess or trainer is killed; the run then ends and
    names it."""
    progress_deadline_s: float = Field(7200, gt=0)
    """Time without a rollout or an optimizer step after which the run ends and names the stuck stage; until
    the trainer has ended."""

    @property
    def input_deadline_s(self) -> float:
        """How long a role waits for its input: the launcher, which sees every stage, speaks first."""
        return self.progress_deadline_s + 60.0


_ALL = frozenset({"actor_llm", "actor", "preprocessor", "finetune"})
ROLES_OF_MODE: dict[str, frozenset[str]] = {
    "": _ALL,
    "open_loop": _ALL,
    "actor": frozenset({"actor_llm", "actor"}),
    "evaluate": frozenset({"actor_llm", "actor"}),
    "actor+preprocessor": frozenset({"actor_llm", "actor", "preprocessor"}),
    "finetune": frozenset({"finetune"}),
    "preprocessor": frozenset({"preprocessor"}),
    "finetune+preprocessor": frozenset({"finetune", "preprocessor"}),
}


def roles_of(mode: str) -> frozenset[str]:
    """Kinds of jobs that a debug mode starts; the empty one starts all. ConfigError for an unknown mode."""
    if mode not in ROLES_OF_MODE:
        raise ConfigError(
            f"debug.mode={mode!r}: no such mode; {suggestion(mode, filter(None, ROLES_OF_MODE))}"
        )
    return ROLES_OF_MODE[mode]


class DebugConfig(Section):
    """Running part of the pipeline."""

    mode: Literal[
        "",
        "evaluate",
        "finetune",
        "actor",
        "preprocessor",
        "actor+preprocessor",
        "finetune+preprocessor",
        "open_loop",
    ] = ""
    """Roles to run, such as `actor+preprocessor`; empty = all, `open_loop` = all without weight updates,
    `evaluate` = engines and actor for one pass over the test problems."""
    streams_from: str | None = None
    """Folder of an earlier run whose recorded streams are replayed."""
    use_existing_llms: bool = False
    """Use engines that already listen on this host, from `engine.port` on, instead of starting them."""
    place_inference_workers: bool = True
    """Reserve devices for engines even in a mode that starts none."""

    @property
    def evaluates_only(self) -> bool:
        """Whether nothing is sampled for training."""
        return self.mode == "evaluate"

    @property
    def roles(self) -> frozenset[str]:
        """Kinds of jobs that this mode starts."""
        return roles_of(self.mode)
