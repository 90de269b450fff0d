"""The whole configuration tree as one typed model."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipelinerl.base.errors import ConfigError, suggestion
from pipelinerl.config.base import KEPT, OpenSection
from pipelinerl.config.bootstrap import BootstrapConfig
from pipelinerl.config.finetune import FinetuneConfig, FsdpConfig, Sharding
from pipelinerl.config.machine import (
    DebugConfig,
    DerivedConfig,
    HardwareConfig,
    Job,
    ObserveConfig,
    StreamsConfig,
    WandbConfig,
    WatchdogConfig,
    WorldConfig,
)
from pipelinerl.config.roles import (
    ActorConfig,
    EnvironmentSpec,
    PreprocessConfig,
    RewardsConfig,
    SubsetConfig,
    TeacherConfig,
)
from pipelinerl.config.serving import EngineConfig, LLMConfig, TestLLMConfig, VllmConfig, WeightsConfig
from pipelinerl.config.staleness import Staleness


class Config(OpenSection):
    """Keys outside of the sections below."""

    streams: StreamsConfig = StreamsConfig()
    """Record transport."""
    finetune: FinetuneConfig = FinetuneConfig()
    """Trainer."""
    rewards: RewardsConfig = RewardsConfig()
    """Reward table."""
    output_dir: str | None = None
    """Folder of the run; null: `results/<domain>/<date-time>`, without a domain `results/run/<date-time>`."""
    validate_: bool = Field(False, alias="validate")
    """Stop after validation."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64), KEPT] = 42
    """Seed of Python's `random` in the loader, of the drawn problems, evaluations and the trainer, and, plus
    their index, of vLLM's engines; with `max_lag=0` also of training samples."""
    model_path: Annotated[str, KEPT] = "Qwen/Qwen2.5-7B"
    """Folder or hub name of the policy with which training starts."""
    fp32_layer_prefix: Literal["lm_head"] | None = "lm_head"
    """`lm_head`: vLLM computes logits in float32; null: in the model's type."""
    eval_every_n_versions: int = Field(78_000, ge=0)
    """Samples (not versions) after which the next evaluation is due; the first is at the start. 0 = none
    before the end."""
    eval_at_end: bool = True
    """Evaluate the last version after training."""
    force_restart: bool = False
    """Remove the files of an earlier run in `output_dir` and start over."""
    pop_old_data: bool = True
    """Without `max_lag`: a full `preprocess.ring_buffer_size` drops its oldest samples; not in a replay."""
    max_lag: int | None = Field(None, ge=0)
    """Largest age of a trained token: how many samples older than the last weight version its own version may
    be when it is trained; null = no bound."""
    attempts: int = Field(8, ge=1)
    """Rollouts per training problem; follows `finetune.attempts`, which is the key to set."""
    train_subset: Annotated[SubsetConfig | None, KEPT] = None
    """Slice of the training problems, such as `{begin: 0, end: 100}` for the first 100."""
    environment: EnvironmentSpec | None = None
    """One environment, as a mapping with `_target_`."""
    environments: dict[str, EnvironmentSpec] | list[EnvironmentSpec] | None = None
    """Several environments: a mapping by key, or a list of mappings with `key`."""
    environment_key: str | None = None
    """Environment of rollout policies that ask for no other; with the dispatcher, also the domain of problems
    that name none."""
    dataset_loader: Annotated[str | None, KEPT] = None
    """Dotted path of `load_problems(dataset_names, **params) -> list[dict]`."""
    dataset_loader_params: dict[str, Any] = {}
    """Further arguments of the loader."""
    train_dataset_names: Annotated[list[str], KEPT] = ["train"]
    """Names given to the loader for training; none if only names for evaluation are given."""
    test_dataset_names: list[str] = ["test"]
    """Names given to the loader for evaluation; none if only names for training are given."""
    domain_name: str | None = None
    """Name chosen with `+domain=NAME`."""
    domain_hooks: Annotated[str | list[str] | None, KEPT] = None
    """Dotted path of a `pipelinerl.domain.Domain` object, or of several; null = none."""
    domain_keys: list[str] = []
    """Keys that the domain's or the user's own file added."""
    accelerate_config: str | None = None
    """File for `accelerate launch`, which starts several trainer ranks; null = one that the launcher
    writes."""
    use_deepspeed: bool = False
    """Shard as stage 2 or 3 of DeepSpeed, which itself is not used; `deepspeed_config` names the stage."""
    deepspeed_config: str = "deepspeed_stage3_bf16"
    """`deepspeed_stage3_bf16` shards parameters, gradients and optimizer state, `deepspeed_stage2_bf16` too,
    but layers that were gathered stay so until their backward pass; `deepspeed_stage1_bf16` nothing."""
    use_fsdp: bool | Literal["auto"] = "auto"
    """Shard parameters, gradients and optimizer state. `auto`: if several ranks do not fit otherwise, or if
    sharding saves recomputation, where the sizes of model and card are known."""
    fsdp: FsdpConfig = FsdpConfig()
    """Data types of sharded training."""
    hardware: HardwareConfig = HardwareConfig()
    """What the run may use."""
    world: WorldConfig = WorldConfig()
    """Placement."""
    engine: EngineConfig = EngineConfig()
    """Inference engines."""
    vllm_config: VllmConfig = VllmConfig()
    """Options of vLLM."""
    weights: WeightsConfig = WeightsConfig()
    """Weight updates."""
    llm: LLMConfig = LLMConfig()
    """Sampling in training."""
    test_llm: TestLLMConfig = TestLLMConfig()
    """Sampling in evaluation."""
    actor: ActorConfig = ActorConfig()
    """Rollouts."""
    preprocess: PreprocessConfig = PreprocessConfig()
    """Grouping, advantages, packing."""
    teacher: TeacherConfig = TeacherConfig()
    """Distillation on the policy's own samples."""
    wandb: WandbConfig = WandbConfig()
    """Weights & Biases."""
    observe: ObserveConfig = ObserveConfig()
    """Pages and records for people."""
    watchdog: WatchdogConfig = WatchdogConfig()
    """Deadlines of a run that is stuck."""
    debug: DebugConfig = DebugConfig()
    """Partial runs."""
    bootstrap: BootstrapConfig = BootstrapConfig()
    """Recipe of a small model made from scratch."""
    attempt: int = Field(0, ge=0)
    """Number of earlier starts of this run; written by the launcher."""
    jobs: list[Job] = []
    """Processes of the run; written by the launcher."""
    derived_: DerivedConfig | None = Field(None, alias="derived")
    """Quantities computed from the keys and the placement; written by the launcher."""
    me: dict[str, Any] | None = None
    """The process that reads this tree; filled by `load_tree`."""

    @property
    def bootstrap_out(self) -> str:
        """The folder that the recipe of a small model makes."""
        return self.bootstrap.out or f"results/bootstrap/{self.domain_name}"

    @model_validator(mode="after")
    def _open_groups_hold_domain_keys_only(self) -> "Config":
        problems = []
        for prefix, section in (("", self), ("actor.", self.actor)):
            brought = [key.removeprefix(prefix) for key in self.domain_keys if key.startswith(prefix)]
            for key in section.model_extra or {}:
                if key not in brought:
                    hint = suggestion(key, [*section.keys(), *brought], prefix)
                    problems.append(f"{prefix}{key}: unknown key; {hint}")
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def derived(self) -> DerivedConfig:
        """What the launcher computed. Raises ConfigError in a tree that no launcher has placed."""
        if self.derived_ is None:
            raise ConfigError("derived: missing; start the run again with python -m pipelinerl.launch")
        return self.derived_

    @property
    def staleness(self) -> Staleness:
        """The bound on the age of what is trained."""
        return self.staleness_with(self.derived_)

    def staleness_with(self, derived: DerivedConfig | None) -> Staleness:
        """The same with quantities that are not written into the tree yet."""
        return Staleness(self.max_lag, None if derived is None else derived.texts_per_update)

    @property
    def rows_at_once(self) -> int:
        """Rows that the trainer's ranks compute at a time, so partitions of `training_data`."""
        return max(1, self.derived.trainer_ranks // self.finetune.seq_parallel)

    def total_texts(self, step: int = 0, texts: int = 0) -> int:
        """Samples of the whole run, `texts` of which were trained in `step` steps before a resume.

        Those may have been of another size, so they say nothing about what is to come.
        """
        return texts + max(0, self.finetune.last_step - step) * self.derived.texts_per_step

    @property
    def policy_path(self) -> str:
        """Folder or hub name of the weights that training starts from."""
        return self.finetune.config_name or self.model_path

    @property
    def sharding(self) -> Sharding | None:
        """FSDP as configured, or what a DeepSpeed stage shards: 1 nothing here, 2 and 3 all."""
        return self.sharding_if(self.use_fsdp is True)

    def sharding_if(self, use_fsdp: bool) -> Sharding | None:
        """The same for a value of `use_fsdp`, which may be open still."""
        reduced, offload = self.fsdp.reduce_dtype == "bf16", self.fsdp.cpu_offload
        if self.use_deepspeed:
            if "stage1" in self.deepspeed_config:
                return None
            return Sharding(keep_gathered="stage2" in self.deepspeed_config, reduce_bfloat16=reduced)
        return Sharding(reduce_bfloat16=reduced, offload=offload) if use_fsdp or offload else None

    def on_gpu(self, job: Job | None) -> bool:
        """Whether a process computes on GPUs; None is one that the launcher did not place."""
        return self.hardware.kind == "gpu" and (job is None or bool(job.gpus))

    @property
    def trainer_on_gpu(self) -> bool:
        """Whether the trainer computes on GPUs."""
        return self.on_gpu(next(iter(self.jobs_of("finetune")), None))

    def streams_source(self, kind: str) -> Path | None:
        """Folder of the recording that `preprocessor` or `finetune` replays; None: it follows this run."""
        producer = "actor" if kind == "preprocessor" else "preprocessor"
        if self.debug.streams_from is None or self.jobs_of(producer):
            return None
        return Path(self.debug.streams_from)

    @property
    def updates_engines(self) -> bool:
        """Whether the trainer sends weights to this run's engines; otherwise they keep their first ones."""
        return self.finetune.send_weight_updates and self.debug.mode == ""

    @property
    def evaluates(self) -> bool:
        """Whether this run ever asks its test problems."""
        return bool(self.test_dataset_names and (self.eval_every_n_versions or self.eval_at_end))

    @property
    def several_hosts(self) -> bool:
        """Whether some process of the run is placed beyond the launcher's host."""
        return any(job.node_rank for job in self.jobs)

    def jobs_of(self, kind: str) -> list[Job]:
        """The jobs of one kind, in order."""
        return [job for job in self.jobs if job.kind == kind]


OPEN_GROUPS: dict[str, type[OpenSection]] = {"": Config, "actor.": ActorConfig}
"""Groups that take keys of a domain, by the beginning of their keys."""
