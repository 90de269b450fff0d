"""The guessing game with a server that every rollout asks first, so that servers can die in tests."""

import http.server
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.guessing.stepwise import generate_guessing_rollout
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import RolloutResult


class Umpire:
    """An environment whose answer is always the same."""

    def launch(self, *, port: int) -> None:
        http.server.ThreadingHTTPServer(("127.0.0.1", port), _Fair).serve_forever()


class _Fair(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


async def umpired_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One game after the umpire has agreed."""
    url = next(job.url for job in cfg.jobs if job.kind == "environment")
    async with session.get(url + "/", timeout=aiohttp.ClientTimeout(total=2)) as answer:
        answer.raise_for_status()
    return await generate_guessing_rollout(cfg, llm, problem, session)
