"""Counters of an engine and their Prometheus text, served as `/metrics`.

Names are vLLM's where vLLM has the metric, since the fleet and dashboards read every engine alike.
"""

from collections import Counter
from dataclasses import dataclass, field

from pipelinerl.engines.engine_metrics import STARTED


@dataclass(slots=True)
class EngineMetrics:
    """Written by the engine thread (requests received: by the server), read by `/metrics`."""

    started: float
    """Seconds since 1970."""
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    requests_received: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache, as vLLM counts them."""
    prefix_hits: int = 0
    """Of these, found and hence not computed."""
    steps: int = 0
    step_seconds: float = 0.0
    finished: Counter[str] = field(default_factory=Counter)
    """Requests by finish reason."""
    update_seconds: dict[str, float] = field(default_factory=dict)
    update_counts: Counter[str] = field(default_factory=Counter)

    def observe_update(self, operation: str, seconds: float) -> None:
        """Add one weight-update operation (pause, start, update, finish, resume)."""
        self.update_seconds[operation] = self.update_seconds.get(operation, 0.0) + seconds
        self.update_counts[operation] += 1

    def text(self, model_name: str) -> str:
        """Prometheus exposition format, one sample per line."""
        label = f'model_name="{model_name}"'
        rows: list[tuple[str, str, str, float]] = [
            (STARTED, "gauge", label, self.started),
            ("vllm:num_requests_running", "gauge", label, self.running),
            ("vllm:num_requests_waiting", "gauge", label, self.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", label, self.kv_usage),
            ("vllm:prompt_tokens_total", "counter", label, self.prompt_tokens),
            ("vllm:generation_tokens_total", "counter", label, self.generation_tokens),
            ("vllm:num_preemptions_total", "counter", label, self.preemptions),
            ("vllm:prefix_cache_queries_total", "counter", label, self.prefix_queries),
            ("vllm:prefix_cache_hits_total", "counter", label, self.prefix_hits),
            ("pipelinerl:requests_received_total", "counter", label, self.requests_received),
            ("pipelinerl:engine_steps_total", "counter", label, self.steps),
            ("pipelinerl:engine_step_seconds_total", "counter", label, self.step_seconds),
        ]
        # All from the start: a series that appears with its first event has no value to count from.
        for reason in ("stop", "length", "abort", "error"):
            labels = f'{label},finished_reason="{reason}"'
            rows.append(("vllm:request_success_total", "counter", labels, self.finished[reason]))
        base = "vllm:rl_weight_update_operation_duration_seconds"
        for operation, seconds in sorted(self.update_seconds.items()):
            labels = f'{label},operation="{operation}"'
            rows.append((f"{base}_sum", "counter", labels, seconds))
            rows.append((f"{base}_count", "counter", labels, self.update_counts[operation]))
        lines, typed = [], set()
        for name, kind, labels, value in rows:
            if name not in typed:
                lines.append(f"# TYPE {name} {kind}")
                typed.add(name)
            lines.append(f"{name}{{{labels}}} {float(value)!r}")
        return "\n".join(lines) + "\n"
