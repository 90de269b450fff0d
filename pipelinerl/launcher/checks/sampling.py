"""Sampling and context: what the trainer can recompute, and what fits."""

from collections.abc import Iterator

from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import engine_kind


def check(cfg: Config) -> Iterator[str]:
    """Problems with sampling parameters and lengths."""
    if not cfg.debug.evaluates_only:  # which samples as test_llm says, and trains nothing
        yield from training_sampling(cfg)
    yield from context(cfg)


def training_sampling(cfg: Config) -> Iterator[str]:
    """Training may use temperature and nothing else that reshapes the distribution."""
    p = cfg.llm.parameters
    reason = "the trainer cannot recompute such probabilities"
    for name, value, off, is_off in (
        ("temperature", p.temperature, "a value above 0", p.temperature > 0),
        ("top_p", p.top_p, "1", p.top_p == 1),
        ("top_k", p.top_k, "0", p.top_k in (0, -1)),
        ("min_p", p.min_p, "0", p.min_p == 0),
        ("min_tokens", p.min_tokens, "0", p.min_tokens == 0),
        ("repetition_penalty", p.repetition_penalty, "1", p.repetition_penalty == 1),
        ("presence_penalty", p.presence_penalty, "0", p.presence_penalty == 0),
        ("frequency_penalty", p.frequency_penalty, "0", p.frequency_penalty == 0),
    ):
        if not is_off:
            yield f"llm.parameters.{name}={value}: {reason}; set {off} (test_llm is free)"
    if p.seed is not None and cfg.finetune.attempts > 1:
        yield (
            f"llm.parameters.seed={p.seed}: every attempt at a problem would be the same sample; "
            "leave it out (seed is that of the run, test_llm is free)"
        )
    temperature = cfg.finetune.rl.temperature
    if p.temperature > 0 and temperature != p.temperature:
        yield (
            f"finetune.rl.temperature={temperature}: sampling uses {p.temperature}; "
            "set llm.parameters.temperature only"
        )


def context(cfg: Config) -> Iterator[str]:
    """Completion < engine context <= packed sequence."""
    limit, key = cfg.engine.max_model_len, engine_kind(cfg).context_key(cfg)
    groups = ([] if cfg.debug.evaluates_only else ["llm"]) + (["test_llm"] if cfg.evaluates else [])
    for group in groups:
        longest = getattr(cfg, group).parameters.max_tokens
        if longest >= limit:
            yield (
                f"{group}.parameters.max_tokens={longest}: leaves no room for a prompt in "
                f"{key}={limit}; lower the first or raise the second"
            )
    if cfg.finetune.seq_length < limit and not cfg.debug.evaluates_only:
        yield (
            f"finetune.seq_length={cfg.finetune.seq_length}: shorter than {key}={limit}; "
            f"set finetune.seq_length={limit} or more"
        )
