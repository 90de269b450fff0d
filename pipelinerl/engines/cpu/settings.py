"""What an embedded engine is started with, as `__main__` reads it from the command line."""

import json
from dataclasses import dataclass
from pathlib import Path

DTYPES = ("float32", "bfloat16")
DEFAULT_MODEL_LEN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Frozen start-up values; `problems` says what is wrong with them."""

    model: Path
    """Folder with a model in Hugging Face format."""
    served_model_name: str = "model"
    """Name that requests may give as `model`."""
    max_num_seqs: int = 32
    """KV slots, hence sequences that run at the same time."""
    max_model_len: int = DEFAULT_MODEL_LEN
    """Tokens per slot, prompt and output together."""
    max_prefill_tokens: int = 1024
    """Prompt tokens computed in one step beside the decoding sequences."""
    max_waiting: int = 1024
    """Sequences that may wait for a slot; beyond that requests are answered 503."""
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

    def problems(self) -> list[str]:
        """One line for each value that cannot work."""
        found = []
        if not (self.model / "config.json").is_file():
            found.append(f"--model {self.model} has no config.json; give a folder in Hugging Face format")
        if self.dtype not in DTYPES:
            found.append(f"--dtype {self.dtype} is not supported; use one of {', '.join(DTYPES)}")
        for name in ("max_num_seqs", "max_model_len", "max_prefill_tokens", "threads"):
            value = getattr(self, name)
            if value < 1:
                found.append(f"--{name.replace('_', '-')} {value} is too small; it must be at least 1")
        if self.max_waiting < 0:
            found.append(f"--max-waiting {self.max_waiting} is negative; 0 or more sequences may wait")
        return found


def default_model_len(model: Path) -> int:
    """DEFAULT_MODEL_LEN, or the model's positions if they are fewer; loading it names damages."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        text = config.get("text_config") or config
        return min(DEFAULT_MODEL_LEN, int(text.get("max_position_embeddings") or DEFAULT_MODEL_LEN))
    except (OSError, ValueError, AttributeError, TypeError):
        return DEFAULT_MODEL_LEN
