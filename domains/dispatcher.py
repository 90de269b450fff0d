"""One rollout policy for a run of several domains: each problem goes to the policy of its domain.

actor:
  rollout_policy: pipelinerl.domains.dispatcher.generate_multidomain_rollout
  domain_mix: {math: 3, guessing: 1}
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.registry import find_rollout, resolve_callable
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import RolloutResult
from pipelinerl.utils import resolve_environment_key

Target = str | Callable[..., Any]

_registered: dict[str, Target] = {}


def register_domain_rollout(domain: str, target: Target) -> None:
    """Give a domain its rollout policy: a function or its dotted path. It goes before the configured one.

    Call it where workers import it, for instance in the module of the dataset loader's package or of the
    policy itself. Raises ValueError for an empty name, and for a text that is no dotted path.
    """
    domain = str(domain).strip()
    if not domain:
        raise ValueError("register_domain_rollout: the domain's name is empty")
    if isinstance(target, str):
        target = target.strip()
        if "." not in target:
            raise ValueError(f"register_domain_rollout: {target!r} is not a dotted path")
    _registered[domain] = target


def domain_of(cfg: DictConfig, problem: dict[str, Any]) -> str:
    """`problem["domain"]`, else the environment's key. Raises ValueError where there is neither."""
    domain = problem.get("domain") or resolve_environment_key(cfg)
    if not domain:
        named = problem.get("id", "without id")
        raise ValueError(f"problem {named}: has no 'domain' and no environment key is configured")
    return str(domain)


def rollout_of(cfg: DictConfig, domain: str) -> Callable[..., Any]:
    """The policy of a domain: what was registered, else `actor.domain_rollouts`, else by convention.

    Raises ConfigError that names the key to set.
    """
    configured = (cfg.actor.get("domain_rollouts") or {}).get(domain)
    target = _registered.get(domain, configured)
    return _resolved(domain, target)


@cache
def _resolved(domain: str, target: Target | None) -> Callable[..., Any]:
    key = f"actor.domain_rollouts.{domain}"
    return find_rollout(domain, key) if target is None else resolve_callable(target, key)


async def generate_multidomain_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """The rollout of the problem's domain, labelled with it. Plain functions run in a thread."""
    domain = domain_of(cfg, problem)
    policy = rollout_of(cfg, domain)
    if inspect.iscoroutinefunction(policy):
        result = await policy(cfg, llm, problem, session)
    else:
        inside = contextvars.copy_context().run
        loop, threads = asyncio.get_running_loop(), _threads(int(cfg.actor.get("llm_max_rollouts", 64)))
        result = await loop.run_in_executor(threads, inside, policy, cfg, llm, problem, session)
        result = await result if inspect.isawaitable(result) else result
    if not isinstance(result, RolloutResult):
        raise TypeError(
            f"the rollout policy of {domain} returned a {type(result).__name__}, no RolloutResult"
        )
    if result.domain is None:
        result.domain = domain
    return result


@cache
def _threads(most: int) -> ThreadPoolExecutor:
    """Threads are started as they are needed; as many as rollouts of one engine."""
    return ThreadPoolExecutor(most, "domain-rollout")
