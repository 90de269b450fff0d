"""Programs of others, as they are on PyPI, play the guessing game of `docs/examples/recorded`.

    uv venv /tmp/programs && uv pip install -p /tmp/programs/bin/python mini-swe-agent 'smolagents[openai]' \\
        openai-agents anthropic 'pydantic-ai-slim[openai,anthropic]' inspect-ai
    RECORDED_PYTHON=/tmp/programs/bin/python python -m pytest tests/unit/recorder/test_harnesses.py

They have an environment of their own, since the project does not depend on them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
from tests.support.engine_harness import full_logprobs, reference, running_engine
from tests.support.recorded_programs import PYTHON, need

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE, MODEL = ROOT / "docs/examples/recorded", ROOT / "domains/guessing/checkpoint"
# Package, file, arguments, route, guesses in a game, texts of a game when its calls are joined.
PROGRAMS = [
    ("anthropic", "with_anthropic", [], "/v1/messages", 8, None),
    ("agents", "with_openai_agents", [], "/v1/responses", 8, None),
    ("pydantic_ai", "with_pydantic_ai", ["messages"], "/v1/messages", 4, 1),
    ("pydantic_ai", "with_pydantic_ai", ["responses"], "/v1/responses", 4, 1),
    ("pydantic_ai", "with_pydantic_ai", ["chat"], "/v1/chat/completions", 4, 1),
    ("smolagents", "with_smolagents", [], "/v1/chat/completions", 2, None),
    ("minisweagent", "with_mini_swe_agent", [], "/v1/chat/completions", 4, 1),
    ("inspect_ai", "with_inspect_ai", ["openai"], "/v1/responses", 4, 1),
    ("inspect_ai", "with_inspect_ai", ["anthropic"], "/v1/messages", 4, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "program", "arguments", "route", "most", "dialogues"),
    PROGRAMS,
    ids=["-".join([one[0], *one[2]]) for one in PROGRAMS],
)
async def test_a_program_from_pypi_is_trained_as_the_engine_sampled_it(
    package: str,
    program: str,
    arguments: list[str],
    route: str,
    most: int,
    dialogues: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need(package)
    asked = routes_of_sessions(monkeypatch)
    async with running_engine(MODEL, max_model_len=256) as engine:
        await engine.post("/update_weight_version", {"weight_version": "48"})
        llm = TrainableLLM(
            model_name=str(MODEL), base_url=engine.url, parameters={"max_tokens": 4}, context_size=256
        )
        model = reference(engine.server.settings.model)
        for answer in (37, 90):
            async with recorder.session(llm) as session:
                argv = [PYTHON, str(EXAMPLE / f"{program}.py"), str(answer), *arguments]
                printed = await session.run(argv, deadline_s=300)
                texts = session.texts(joined=True)
            guesses = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
            assert len(guesses) == len(session.calls) <= most
            assert len(texts) == (dialogues or len(guesses))
            assert guesses[-1]["won"] or len(guesses) == most
            outputs = np.concatenate([call.output_token_ids for call in session.calls])
            assert np.concatenate([text.labels[text.labels != -100] for text in texts]).tolist() == (
                outputs.tolist()
            )
            for text in texts:
                expected = full_logprobs(model, text.input_ids, temperature=1.0)
                learned = text.labels != -100
                assert text.logprobs == pytest.approx(expected[learned[1:]].tolist(), abs=1e-3)
                assert text.weight_versions == [(48, 0, int(learned.sum()))]
    assert {one for one in asked if not one.endswith("/models")} == {route}


def routes_of_sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by the path of each request to a session."""
    seen: list[str] = []
    site = sys.modules["pipelinerl.extras.recorder.site"]
    real = site.Site._session

    def session(self: Any, http: Any) -> recorder.Session:
        seen.append(site._path_of(http))
        found: recorder.Session = real(self, http)
        return found

    monkeypatch.setattr(site.Site, "_session", session)
    return seen
