"""Sampling and context: what the trainer can recompute, and what fits."""

from collections.abc import Iterator

from pipelinerl.config.tree import Config


def check(cfg: Config) -> Iterator[str]:
    """Problems with sampling parameters and lengths."""
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
    temperature = cfg.finetune.rl.temperature
    if p.temperature > 0 and temperature != p.temperature:
        yield (
            f"finetune.rl.temperature={temperature}: sampling uses {p.temperature}; "
            "set llm.parameters.temperature only"
        )


def context_key(cfg: Config) -> str:
    """The key that says how long a context is: vLLM's own on GPUs, from which the engine's is taken.

    A preset may write both; the engine's is the one to change where vLLM's says something else already.
    """
    on_gpus = cfg.engine.kind == "vllm" and cfg.hardware.kind == "gpu"
    follows = cfg.vllm_config.vllm_kwargs.get("max_model_len") == cfg.engine.max_model_len
    return "vllm_config.vllm_kwargs.max_model_len" if on_gpus and follows else "engine.max_model_len"


def context(cfg: Config) -> Iterator[str]:
    """Completion < engine context <= packed sequence."""
    limit = cfg.engine.max_model_len
    for group in ("llm", "test_llm") if cfg.evaluates else ("llm",):
        longest = getattr(cfg, group).parameters.max_tokens
        if longest >= limit:
            yield (
                f"{group}.parameters.max_tokens={longest}: leaves no room for a prompt in "
                f"{context_key(cfg)}={limit}; lower the first or raise the second"
            )
    if cfg.finetune.seq_length < limit and not cfg.debug.evaluates_only:
        yield (
            f"finetune.seq_length={cfg.finetune.seq_length}: shorter than {context_key(cfg)}={limit}; "
            f"set finetune.seq_length={limit} or more"
        )
    if cfg.engine.kind == "embedded" and cfg.engine.max_prefill_tokens > limit * cfg.engine.max_num_seqs:
        most = limit * cfg.engine.max_num_seqs
        given = cfg.engine.max_prefill_tokens
        yield f"engine.max_prefill_tokens={given}: more than the slots hold; set at most {most}"
