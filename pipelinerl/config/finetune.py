"""Configuration of the trainer."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pipelinerl.config.base import KEPT, Section

Normalisation = Literal["training_texts", "rollouts", "rollout_mean"]


class CorrectionConfig(Section):
    """Bounds on the importance ratio of trainer to engine (docs/objective.md)."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Unit that has one ratio: a token, or a sample by the product (`sequence`) or the geometric mean
    (`geometric`) of its tokens' ratios."""
    mode: Literal["off", "clip", "mask", "truncate"] = "off"
    """What becomes of ratios beyond the bounds: `clip` moves them to the nearer bound, `truncate` to the
    upper one (it has no lower one), `mask` leaves their tokens out of the policy term."""
    low: float = Field(0.5, ge=0, le=1)
    """Lower bound of the ratio (`clip`, `mask`)."""
    high: float = Field(2.0, ge=1)
    """Upper bound of the ratio."""
    proximal: bool = False
    """True: the loss uses the ratio to the policy at the start of the step, times the bounded ratio to the
    engine (decoupled PPO). False: the bounded ratio to the engine, with `mask` the ratio itself."""

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, given: Any) -> Any:
        return "off" if given is False else given


class RLConfig(Section):
    """Loss and advantages; formulas in docs/objective.md."""

    policy_loss: str = "reinforce"
    """`reinforce`, `ppo`, `gspo`, `cispo`, `sft`, or the dotted path of a function `(LossInputs, RLConfig) ->
    scalar`."""
    epsilon_low: float = Field(0.02, ge=0, le=1)
    """Lower clip of the importance ratio, at 1 minus this value (`ppo`, `gspo`, `cispo`)."""
    epsilon_high: float = Field(0.02, ge=0)
    """Upper clip of the importance ratio, at 1 plus this value (bundled losses but `sft`)."""
    correction: CorrectionConfig = CorrectionConfig()
    """Corrections for tokens of old weights and of an engine that rounds otherwise."""
    use_advantages: bool = True
    """Weight each token by its advantage; false: by the reward of its sample (`reinforce`, `ppo`,
    `cispo`)."""
    divide_advantage_by_std: bool = False
    """Divide an advantage by 0.0001 plus the standard deviation of the compared rewards, its own included."""
    advantage_estimator: str | None = None
    """`rollout`, `situation` or the dotted path of a function (docs/objective.md); null: `situation` with
    `step_reward_advantages`, else `rollout`."""
    step_reward_advantages: bool = False
    """Compare samples of a group at the same place of the same situation (docs/objective.md); false: compare
    whole rollouts."""
    pad_step_rewards_for_advantage: bool = False
    """Count virtual samples where a rollout has fewer samples of a situation than another rollout of its
    group, or ends earlier; needs `step_reward_advantages`."""
    zero_advantage_epsilon: float = Field(1e-6, ge=0)
    """Advantages up to this size count as zero for `filter_zero_advantage_groups`."""
    filter_zero_advantage_groups: bool = False
    """Drop groups in which every advantage is zero, up to `zero_advantage_epsilon`."""
    batch_size_normalization: Normalisation = "training_texts"
    """What the loss averages: samples (`training_texts`), sums over each rollout's samples (`rollouts`), or
    means over them (`rollout_mean`)."""
    loss_scale_scope: Annotated[Literal["chunk", "batch"], KEPT] = "batch"
    """Samples over which `batch_size_normalization` is computed: those of a step (`batch`) or of a chunk of
    groups (`chunk`)."""
    role_weights: Annotated[dict[str, float], KEPT] = {}
    """Weight of each role's objective, a number or a fraction such as `1/9`; empty = off."""
    role_lengths: Annotated[dict[str, Annotated[float, Field(gt=0)]], KEPT] = {}
    """Constant length normalisation: for each role, the number that divides each token's loss; empty = 1."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL to the reference at the first step."""
    final_kl_coef: float | None = Field(None, ge=0)
    """Weight of the KL after `max_train_steps` steps, linear in between; null = `kl_coef`."""
    entropy_bonus: float = 0.0
    """Weight of the entropy at the first step."""
    final_entropy_bonus: float | None = None
    """Weight of the entropy after `max_train_steps` steps, linear in between; null = `entropy_bonus`."""
    relu_log_p_weights: bool = False
    """Treat negative advantages (or rewards, without `use_advantages`) as 0 (`reinforce`, `ppo`, `cispo`)."""
    clamp_log_ratio_ref_new_value: float = Field(5.0, gt=0)
    """Bound of the log-ratio to the reference inside the KL."""
    group_normalization: bool = False
    """Divide token weights by the mean number of tokens of the group's rollouts (docs/objective.md), not by
    the samples of the step."""
    overlong_filtering: bool = False
    """Samples cut by length have the weight 0 in the loss."""
    value_loss_coef: float = Field(0.0, ge=0)
    """Weight of the value head's loss."""
    temperature: float = Field(1.0, ge=0)
    """Temperature of recomputed log-probabilities; follows `llm.parameters.temperature`, which is the key to
    set."""
    routing: Literal["auto", "replay", "free"] = "auto"
    """Experts of a mixture's tokens in training: `replay` uses the engine's choice, `free` that of the
    trainer's routers. `auto` replays where engines can say the experts (vLLM: on GPUs, from 0.31 on), but not
    with `seq_parallel` or `policy_loss=sft`."""
    router_aux_loss_coef: float = Field(0.0, ge=0)
    """Weight of the loss that balances the load of experts, computed for each row."""

    @field_validator("role_weights", "role_lengths", mode="before")
    @classmethod
    def _null_is_empty(cls, given: Any) -> Any:
        """On a command line a mapping can be emptied by null only; `{}` adds nothing to it."""
        return {} if given is None else given

    @field_validator("role_weights", mode="before")
    @classmethod
    def _weights_are_numbers(cls, given: Any) -> Any:
        """Numbers and fractions as floats; what is neither is left for the type to refuse."""
        if not isinstance(given, dict):
            return given
        weights = dict(given)
        for role, weight in given.items():
            if not isinstance(weight, str | int | float):
                continue
            try:
                shown = weight if isinstance(weight, str) else float(weight)
                weights[role] = float(Fraction(shown))
            except (ValueError, ZeroDivisionError, OverflowError):
                raise ValueError(
                    f"weight {weight!r} of role {role} must be a number >= 0 or a fraction such as 1/9"
                ) from None
            if weights[role] < 0:
                raise ValueError(f"weight {shown!r} of role {role} must be >= 0")
        return weights

    @property
    def estimator(self) -> str:
        """`advantage_estimator`, or what null stands for."""
        return self.advantage_estimator or ("situation" if self.step_reward_advantages else "rollout")

    @property
    def uses_reference(self) -> bool:
        """Whether reference log-probabilities are needed: max(kl_coef, final_kl_coef) > 0."""
        return max(self.kl_coef, self.final_kl_coef or 0.0) > 0

    def kl_coefficient(self, completed_steps: int, final_steps: int) -> float:
        """Linear from `kl_coef` to `final_kl_coef` over completed_steps / final_steps."""
        return _linear(self.kl_coef, self.final_kl_coef, completed_steps, final_steps)

    def entropy_coefficient(self, completed_steps: int, final_steps: int) -> float:
        """Linear from `entropy_bonus` to `final_entropy_bonus` over completed_steps / final_steps."""
        return _linear(self.entropy_bonus, self.final_entropy_bonus, completed_steps, final_steps)


def _linear(start: float, end: float | None, completed_steps: int, final_steps: int) -> float:
    end = start if end is None else end
    progress = completed_steps / final_steps if final_steps > 0 else 1.0
    return start + (end - start) * min(1.0, progress)


Checkpointing = bool | Literal["selective", "offload"] | Annotated[int, Field(ge=2)]
"""False: keep every activation. True: keep each layer's input only. An integer n: the same for every n-th
layer. "selective": keep attention and narrow matrix products, recompute the wide ones and what is cheap.
"offload": recompute everything, and keep each layer's input in host memory."""


COMPILE_WORTH_S = 300.0
"""Seconds of work that have to be left for `finetune.compile=auto` to compile. About a third of them or more
is saved, and a first compilation took up to 83 s (`docs/gpu.md`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How several ranks share parameters, gradients and optimizer state."""

    keep_gathered: bool = False
    """Keep a layer's gathered weights from its forward to its backward pass, which saves half of the
    gathering."""
    reduce_bfloat16: bool = False
    """Sum gradients over ranks in bfloat16."""
    offload: bool = False
    """Keep shards and optimizer state in host memory."""


class MemoryDebugConfig(Section):
    """Figures of the trainer's memory among its metrics."""

    enabled: bool = False
    """Report the trainer's resident memory and its peak; on a GPU also its allocated and reserved memory, and
    the peak of the step."""
    every_n_steps: int = Field(1, ge=1)
    """Steps between two reports."""


class FsdpConfig(Section):
    """Data types of sharded training, and where it keeps shards."""

    param_dtype: Literal["fp32", "bf16"] = "fp32"
    """Only checked: `bf16` needs `finetune.load_as_bf16`, which decides in which type parameters compute."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type in which gradients are summed over ranks."""
    buffer_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of buffers; `bf16` is refused."""
    cpu_offload: bool = False
    """Keep shards and optimizer state in host memory, where the optimizer computes; also with one rank."""


class LoraConfig(Section):
    """Low-rank adapters instead of all weights (needs the extra `lora`)."""

    enabled: Annotated[bool, KEPT] = False
    """Train adapters; `weights.lora` says what engines receive."""
    r: Annotated[int, KEPT] = Field(16, ge=1)
    """Rank."""
    alpha: Annotated[float, KEPT] = Field(16.0, gt=0)
    """The adapters' product is scaled by alpha / r."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the adapters."""
    target_modules: Annotated[list[str], KEPT] = []
    """Names of linear layers, such as `q_proj`. Empty = all linear layers of the decoder but the output head;
    in models with experts, none that is named `gate_proj`, `up_proj` or `down_proj`."""

    @property
    def scale(self) -> float:
        """What the product of an adapter's matrices is multiplied by."""
        return self.alpha / self.r


class FinetuneConfig(Section):
    """Sets the trainer's model, optimizer, batch, checkpoints and loss."""

    model_class: Annotated[
        Literal["causal-language-modeling", "causal-language-modeling-with-value-head"], KEPT
    ] = "causal-language-modeling"
    """`causal-language-modeling-with-value-head` adds a value head: the advantage is reward minus value."""
    config_name: Annotated[str | None, KEPT] = None
    """Folder or name of the policy's weights; set from `model_path`."""
    optim: Annotated[Literal["adamw_torch", "adamw_8bit", "adafactor", "lion"], KEPT] = "adamw_torch"
    """Optimizer; `adamw_8bit` keeps most moments in 8 bits (extra `torchao`)."""
    load_as_bf16: bool = True
    """Compute in bfloat16; master weights stay float32."""
    use_flash_attention: bool = True
    """Use the device's variable-length attention if it has one."""
    train_batch_size: int = Field(1, ge=1)
    """Factor of `gradient_accumulation_passes`; rows are packed by `seq_length` alone."""
    gradient_accumulation_passes: int = Field(1024, ge=1)
    """An optimizer step has this number times `train_batch_size` samples, over all trainer ranks, rounded up
    to a multiple of the ranks that compute different rows."""
    learning_rate: float = Field(1e-6, ge=0)
    """Peak learning rate."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay, on matrices; not on biases and in normalisation layers."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the mean of gradients (`adamw_torch`, `adamw_8bit`)."""
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of the mean of squared gradients (`adamw_torch`, `adamw_8bit`)."""
    adam_epsilon: float = Field(1e-8, gt=0)
    """Added to the root of the mean of squared gradients (`adamw_torch`, `adamw_8bit`)."""
    gradient_clipping_threshold: float | None = Field(0.3, gt=0)
    """Largest gradient norm; null = no clipping."""
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    """Shape of the learning rate over `max_train_steps`."""
    num_warmup_steps: int = Field(50, ge=0)
    """Steps of linear warm-up; without effect with `lr_scheduler_type=constant`."""
    max_train_steps: int = Field(100_000, ge=1)
    """Optimizer steps after which the run is complete."""
    max_epochs: int | None = Field(None, ge=1)
    """Epochs after which the run ends, unless `max_train_steps` ends it before; an epoch draws as many
    problems as there are training problems. Null = off. Schedules run over `max_train_steps`."""
    interrupt_train_steps: int = Field(-1, ge=-1)
    """Stop after this many steps without changing the schedule; -1 = off."""
    gradient_checkpointing: Checkpointing | Literal["auto"] = "auto"
    """Recompute activations in the backward pass: of every layer (true), or of every n-th (a number).
    `selective` keeps attention and narrow matrix products, `offload` recomputes every layer from its input in
    host memory (GPU only). `auto`: the table of choices shows the choice; on a CPU nothing."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the decoder layers (GPU only). `auto`: the table of choices shows whether and when."""
    reentrant_checkpointing: bool = False
    """Use torch's reentrant variant of gradient checkpointing."""
    seq_length: int = Field(12_000, ge=8)
    """Most tokens of one packed row; with `share_prefixes` computed tokens. Unless the command line sets it,
    the launcher shortens rows that its memory plan finds too long."""
    seq_packing: bool = True
    """Pack several samples into one row."""
    share_prefixes: bool = True
    """Put samples with a common prefix into one row and compute the prefix once; needs `seq_packing`."""
    seq_parallel: int = Field(1, ge=1)
    """Ranks that compute each row together, so that rows may be longer than one card holds. Must divide the
    trainer's ranks and the attention heads; not for models with linear attention."""
    save_checkpoint_steps: int = Field(100, ge=1)
    """Steps between two checkpoints."""
    also_save_steps: list[Annotated[int, Field(ge=1)]] = []
    """Further steps with a checkpoint."""
    keep_intermediate_checkpoints: bool = True
    """Keep a copy of the model of each checkpoint."""
    save_final_training_state: bool = True
    """Save the training state at the end too, without which the run cannot be trained further."""
    use_safetensors: bool = True
    """Without effect: weights are always saved as safetensors."""
    trust_remote_code: bool = False
    """Let a checkpoint bring Python code."""
    cuda_empty_cache: bool = False
    """Release the unused memory of torch's allocator after each step, before weights are published."""
    log_each_n_steps: int = Field(1, ge=1)
    """Steps between two records of metrics; the last step has one too."""
    send_weight_updates: bool = True
    """Send new weights to the engines."""
    weight_update_interval: int = Field(1, ge=1)
    """Samples between two weight updates, rounded up to whole optimizer steps; 1 = every step."""
    attempts: int = Field(8, ge=1)
    """Rollouts per training problem."""
    input: Annotated[str, KEPT] = "training_data"
    """Topic that the trainer reads."""
    lora: LoraConfig = LoraConfig()
    """Adapters."""
    memory_debug: MemoryDebugConfig = MemoryDebugConfig()
    """Memory reports."""
    rl: RLConfig = RLConfig()
    """Loss and advantages."""

    @property
    def has_value_head(self) -> bool:
        """Whether the trainer puts a value head on the policy."""
        return self.model_class == "causal-language-modeling-with-value-head"

    @property
    def shares_prefixes(self) -> bool:
        """Whether samples share tokens: a sample alone in its row has none to share with."""
        return self.share_prefixes and self.seq_packing

    @property
    def last_step(self) -> int:
        """Step after which the trainer stops."""
        if self.interrupt_train_steps >= 0:
            return min(self.interrupt_train_steps, self.max_train_steps)
        return self.max_train_steps
