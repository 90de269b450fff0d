"""What all rollouts of one worker process share: prompts, addresses, the audit log and the traces."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.privacy_hopqa.agent.audit import AuditLog
from domains.privacy_hopqa.agent.prompts import PromptSet, load_prompts
from domains.privacy_hopqa.agent.traces import Traces
from domains.privacy_hopqa.agent.transport import JsonClient, Retries, Unavailable, with_retries
from domains.privacy_hopqa.reward.scoring import EmbeddedScorer, Scorer, ServiceScorer
from domains.privacy_hopqa.settings import PrivacyHopQASettings, settings_of_run
from pipelinerl.per_tree import PerTree
from retrieval_server.access import TOKEN_VARIABLE

HEALTH_RETRIES = Retries()


@dataclass(slots=True)
class Runtime:
    """One per process and configuration tree. `fingerprint_checked`: the retrieval service was asked once."""

    run_id: str
    prompts: PromptSet
    audit: AuditLog
    traces: Traces
    helper_url: str
    score_url: str | None
    score_timeout_s: float
    fingerprint_checked: bool = False

    def scorer(self, session: aiohttp.ClientSession) -> Scorer:
        """The scoring service if one is configured, else the deterministic scorer in this process."""
        if self.score_url is None:
            return EmbeddedScorer()
        return ServiceScorer(JsonClient(self.score_url, session, self.score_timeout_s))


async def runtime_of(
    cfg: DictConfig, settings: PrivacyHopQASettings, session: aiohttp.ClientSession
) -> Runtime:
    """The runtime of this tree, made on first use; the retrieval service is checked once.

    Raises ValueError for a missing address or a service that serves another world, TransportFailure if it
    does not answer.
    """
    runtime = _RUNTIMES.of(cfg)
    if not runtime.fingerprint_checked:
        await check_fingerprint(runtime.helper_url, settings, session)
        runtime.fingerprint_checked = True
    return runtime


def _make(cfg: DictConfig) -> Runtime:
    settings = settings_of_run(cfg)
    if settings.helper_service_url is None:
        raise ValueError(
            "privacy_hopqa.helper_service_url is null and no embedded retrieval server was started; "
            "start one with python -m retrieval_server and set its address"
        )
    output_dir = Path(str(cfg.output_dir))
    return Runtime(
        run_id=output_dir.name,
        prompts=load_prompts(settings.prompt_set),
        audit=AuditLog.of_run(output_dir, settings.audit_required),
        traces=Traces(output_dir, settings.trace_fraction),
        helper_url=settings.helper_service_url,
        score_url=settings.privacy_reward_service_url,
        score_timeout_s=settings.privacy_reward_timeout_s,
    )


_RUNTIMES = PerTree(_make)


def helper_headers() -> dict[str, str]:
    """The retrieval service's token; from the environment, so that no file of a run holds it."""
    token = os.environ.get(TOKEN_VARIABLE)
    return {"Authorization": f"Bearer {token.strip()}"} if token else {}


async def check_fingerprint(url: str, settings: PrivacyHopQASettings, session: aiohttp.ClientSession) -> None:
    """Compare the fingerprint of the service with that of the data, if both have one.

    Raises ValueError if they differ and for a service that asks for another token: its refusals would look
    like searches that found nothing.
    """
    health = await with_retries(partial(_health, url, settings, session), HEALTH_RETRIES)
    if health.get("authorized") is False:
        raise ValueError(
            f"the retrieval service at {url} asks for a token; set {TOKEN_VARIABLE} to the server's own"
        )
    served = health.get("fingerprint")
    manifest = data_manifest(settings)
    expected = manifest.get("fingerprint") if manifest else None
    if served and expected and served != expected:
        raise ValueError(
            f"the retrieval service at {url} serves world {served}, the chains belong to {expected}; "
            "restart it on privacy_hopqa.task_data_root"
        )


async def _health(url: str, settings: PrivacyHopQASettings, session: aiohttp.ClientSession) -> dict[str, Any]:
    timeout, headers = aiohttp.ClientTimeout(total=settings.helper_timeout_s), helper_headers()
    try:
        async with session.get(
            f"{url.rstrip('/')}/health", timeout=timeout, headers=headers, allow_redirects=False
        ) as response:
            body = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unavailable(f"{url}/health: {type(error).__name__}: {error}") from None
    if not isinstance(body, dict) or body.get("status") != "ok":
        raise Unavailable(f"{url}/health: not ready")
    return body


def data_manifest(settings: PrivacyHopQASettings) -> dict[str, Any] | None:
    """The manifest beside the task folder, if the data come from a generated world."""
    if settings.task_data_root is None:
        return None
    path = Path(settings.task_data_root).parent / "manifest.json"
    if not path.is_file():
        return None
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest
