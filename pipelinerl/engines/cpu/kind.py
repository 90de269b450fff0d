"""`engine.kind=embedded`: this package's own engine, which runs on the CPU and is set by `engine.*`."""

from collections.abc import Iterator, Mapping

from pipelinerl.config.tree import Config
from pipelinerl.engines.kind import EngineKind, EngineStart, Why, served_command


class Embedded(EngineKind):
    """The embedded engine. It reads files of weights ahead of their update by itself."""

    name = "embedded"
    ignores: Mapping[str, str] = {"vllm_config": "the embedded engine reads engine.*"}
    other_transport = "the embedded engine reads files; set file"
    without_ahead = "the embedded engine always reads versions ahead"
    loads_adapters = True
    batches = False  # on a CPU

    def problems(self, cfg: Config, dry_run: bool) -> Iterator[str]:
        most, given = cfg.engine.max_model_len * cfg.engine.max_num_seqs, cfg.engine.max_prefill_tokens
        # More than the slots hold has no effect: harmless as the default, a mistake where somebody set it.
        if given > most and given != type(cfg.engine).model_fields["max_prefill_tokens"].default:
            yield f"engine.max_prefill_tokens={given}: more than the slots hold; set at most {most}"

    def command(self, start: EngineStart) -> tuple[list[str], dict[str, str]]:
        engine = start.cfg.engine
        own = {"max_prefill_tokens": engine.max_prefill_tokens, "dtype": engine.dtype}
        argv = served_command("pipelinerl.engines.cpu", start, **own, threads=engine.threads)
        argv.append(f"--{'' if prefix_cache(start.cfg) else 'no-'}enable-prefix-caching")
        if start.routes:
            argv.append("--enable-return-routed-experts")
        return argv, {}

    def routes_problem(self, cfg: Config) -> str | None:
        return None

    def choice(self, cfg: Config, shown: str, why: Why) -> tuple[str, str, str]:
        return super().choice(cfg, shown + ("" if prefix_cache(cfg) else ", no prefix cache"), why)

    def remedies(self, cfg: Config, spare_cores: bool) -> Iterator[str]:
        # Without a prefix cache a synchronous run resumes bit for bit.
        if not (prefix_cache(cfg) or cfg.staleness.synchronous):
            yield "engine.prefix_cache=true"
        if cfg.engine.threads == 1 and spare_cores:
            yield "engine.threads=2"


def prefix_cache(cfg: Config) -> bool:
    """Whether an embedded engine has one.

    What is found in it decides which tokens are computed together, and so the last bits. A resumed run
    starts with an empty one: where its samples are promised to be the same bits, there is none.
    """
    if cfg.engine.prefix_cache is not None:
        return cfg.engine.prefix_cache
    return not (cfg.staleness.synchronous and cfg.actor.llm_max_rollouts == 1)


EMBEDDED = Embedded()
