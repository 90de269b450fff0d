"""Configuration of `python -m pipelinerl.bootstrap`: a model that imitates demonstrations."""

from pydantic import Field

from pipelinerl.config.base import Section


class ShapeConfig(Section):
    """Sizes of a new model, in the terms of the Qwen3 architecture."""

    hidden: int = Field(192, ge=8)
    """Width of the residual stream."""
    layers: int = Field(5, ge=1)
    """Decoder layers."""
    heads: int = Field(6, ge=1)
    """Query heads."""
    kv_heads: int = Field(3, ge=1)
    """Key and value heads; must divide `heads`."""
    head_dim: int = Field(32, ge=4)
    """Width of a head."""
    mlp: int = Field(512, ge=8)
    """Inner width of the feed-forward layer."""
    max_length: int = Field(1024, ge=16)
    """Longest sequence in tokens; it also bounds the demonstrations of a pretrained model."""


class PhaseConfig(Section):
    """A stretch of training on one kind of demonstrations."""

    name: str
    """Handed to the domain's `demonstrations`."""
    tokens: int = Field(ge=1)
    """Prompt and answer tokens to train on."""
    prompt_loss: float = Field(0.0, ge=0, le=1)
    """Weight of a prompt token's loss; an answer token's is 1."""


class BootstrapConfig(Section):
    """Recipe of a small model; the launcher reads it only to say how a missing `model_path` is made."""

    out: str | None = None
    """Folder for the model; `results/bootstrap/<domain>` when null."""
    start: str | None = None
    """Folder of a pretrained model, with tokenizer and chat template, to start from; null: a new model."""
    checkpoint_steps: int = Field(0, ge=0)
    """Steps between states in `training.pt`, from which the same command continues; 0 = no states."""
    seed: int = Field(1, ge=0, le=9)
    """Seed of the weights and of the worlds of the demonstrations."""
    vocab_size: int = Field(2048, ge=300)
    """Most entries of a new model's tokenizer, added tokens included."""
    tokenizer_texts: int = Field(30_000, ge=100)
    """Demonstrations on which a new model's tokenizer is trained."""
    shape: ShapeConfig = ShapeConfig()
    """Sizes of a new model; `max_length` also bounds the demonstrations of a pretrained one."""
    phases: list[PhaseConfig] = []
    """Phases in order, under one learning-rate schedule; each has `name`, `tokens` (of prompts and answers)
    and `prompt_loss` (weight of a prompt token's loss; 0 if left out)."""
    budget: float = Field(1.0, gt=0)
    """Multiplies the tokens of every phase."""
    pack_tokens: int = Field(65_536, ge=256)
    """Most tokens of one optimizer step."""
    learning_rate: float = Field(2e-3, gt=0)
    """Peak of the cosine schedule."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's, on matrices only."""
    workers: int = Field(0, ge=0)
    """Processes that make demonstrations; 0 = one less than the cores, at least one."""
    gate_demonstrations: int = Field(4_000, ge=100)
    """Held-out demonstrations for the gates, which measure those with one right answer."""
    gates: dict[str, float] = {}
    """Required accuracy by kind of demonstration; a recipe that misses one ends with status 1."""
