"""The rollout policy of `verifiers`: one episode of an environment, recorded."""

import secrets
from typing import Any

import aiohttp
from omegaconf import DictConfig
from pydantic import ConfigDict

from domains.deadline import within
from domains.verifiers.environments import library, served, task_of
from domains.verifiers.settings import VerifiersSettings, settings_of
from domains.verifiers.traces import TraceMismatch, texts_of, values_of
from pipelinerl.base.errors import first_line
from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import PerTree


class VerifiersMetrics(BaseMetrics):
    """Statistics of one episode, and `reward_NAME` and `metric_NAME` as the environment names them."""

    model_config = ConfigDict(extra="allow")

    truncated: bool
    """A limit of verifiers or of tokens ended a seat's play."""
    turns: int
    """Messages that the model wrote, of all seats."""


_settings = PerTree(settings_of)
_tokens: list[str] = []
"""Of sessions that ended in order. verifiers keeps a client for each address until the worker ends, and
making one takes longer than most calls, so that there are as many addresses as rollouts at once."""


async def generate_verifiers_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Play one task. What the environment, its scoring or a seat fails at is a failed rollout by name.

    Raises the engines' failure if they did not answer, which the scheduler may try again.
    """
    settings = _settings.of(cfg)
    return await within(settings.deadline_s, "verifiers.deadline_s", _recorded(settings, llm, problem))


async def _recorded(settings: VerifiersSettings, llm: TrainableLLM, problem: dict[str, Any]) -> RolloutResult:
    token = _tokens.pop() if _tokens else secrets.token_urlsafe(24)
    try:
        result = await _play(settings, llm, problem, token)
    except TraceMismatch as error:
        result = RolloutResult(training_texts=[], failed=f"trace_mismatch: {error}")
    _tokens.append(token)  # not after a rollout that was given up: somebody may still speak at its address
    return result


async def _play(
    settings: VerifiersSettings, llm: TrainableLLM, problem: dict[str, Any], token: str
) -> RolloutResult:
    env = await served(problem["env"])
    task = task_of(env, problem["task"])
    async with recorder.session(llm, override=settings.override, token=token) as recorded:
        episode = await env.run_episode(task, _context(settings, llm, recorded.base_url))
        if recorded.failure is not None:
            raise recorded.failure
        texts = recorded.texts()
    if not episode.ok:
        return RolloutResult(training_texts=[], failed=_failure(episode))
    traces = [trace for trace in episode.traces if trace.agent.trainable]
    reward = sum(float(trace.reward) for trace in traces) / max(len(traces), 1)
    found = texts_of(episode, texts)
    base = {"reward": reward, "success": reward >= settings.success_at, "no_error": True}
    base |= {"no_answer": not found, "truncated": any(trace.is_truncated for trace in episode.traces)}
    base["turns"] = sum(trace.num_turns for trace in episode.traces)
    metrics = VerifiersMetrics.model_validate(values_of(episode) | base)
    return RolloutResult(training_texts=found, metrics=metrics)


def _context(settings: VerifiersSettings, llm: TrainableLLM, base_url: str) -> Any:
    """What verifiers asks: the recorder's address, and nothing about sampling, which is the run's."""
    vf = library()
    renderer = {"name": settings.renderer} if isinstance(settings.renderer, str) else settings.renderer
    client = vf.TrainClientConfig(
        base_url=base_url,
        renderer=renderer,
        renderer_model_name=llm.tokenizer_name or llm.model_name,
        multiplex=4096,  # a renderer is a tokenizer in memory, and renders on a thread of its own
    )
    given = {"chat_template_kwargs": llm.chat_template_kwargs} if llm.chat_template_kwargs else {}
    return vf.ModelContext(llm.model_name, client, vf.SamplingConfig(**given))


def _failure(episode: Any) -> str:
    errors = [episode.last_error, *(trace.last_error for trace in episode.traces if not trace.ok)]
    for error in filter(None, errors):
        return f"{error.type}: {first_line(error.message)}"
    return "episode: it did not come to its end"
