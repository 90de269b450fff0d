"""What an embedded engine is started with, as `__main__` reads it from the command line."""

from dataclasses import dataclass

from pipelinerl.engines.serving.backend import ServerSettings

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class EngineSettings(ServerSettings):
    """Frozen start-up values; each sequence that runs has a KV slot of `max_model_len` tokens."""

    max_prefill_tokens: int = 1024
    """Prompt tokens computed in one step beside the decoding sequences."""
    dtype: str = "float32"
    """Type of weights and KV cache; logits are float32 in any case."""
    threads: int = 1
    """Threads of one forward pass."""
    enable_prefix_caching: bool = True
    """Beginnings that requests share are computed once, as long as the weights stay."""
    enable_return_routed_experts: bool = False
    """Answers say which experts each token went to; for mixtures of experts alone."""

    @property
    def pool_rows(self) -> int:
        """Tokens that the prefix cache holds, half as many as the slots; 0 without one."""
        return self.max_num_seqs * self.max_model_len // 2 if self.enable_prefix_caching else 0

    def positive(self) -> tuple[str, ...]:
        return (*super().positive(), "max_prefill_tokens", "threads")

    def problems(self) -> list[str]:
        found = super().problems()
        if self.dtype not in DTYPES:
            found.append(f"--dtype {self.dtype} is not supported; use one of {', '.join(DTYPES)}")
        return found
