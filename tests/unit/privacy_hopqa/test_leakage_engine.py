"""The language-model adversary and judge against the chat route of a real engine with a random model."""

import pytest
import torch

from domains.privacy_hopqa.leakage.chat import ChatModel, Endpoint, Replies
from domains.privacy_hopqa.leakage.llm import LanguageModelEvaluation, Templates
from domains.privacy_hopqa.leakage.report import Secrets
from tests.support.engine_harness import running_engine
from tests.support.privacy_hopqa.leakage import COMPANY, PRIVATE
from tests.support.text_model import build_text_model, byte_tokenizer

SECRETS = Secrets(COMPANY, (PRIVATE,))
JOBS = [(("cold chain audit 15% stores", "refrigeration rules"), SECRETS), (("frozen food",), SECRETS)]
TOKENS = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    return build_text_model(tmp_path_factory.mktemp("text"))


async def evaluation(engine, replies):
    endpoint = Endpoint(engine.url, "model", timeout_s=60.0, max_tokens=TOKENS)
    models = [ChatModel(endpoint, engine.session, replies) for _ in range(2)]
    found = LanguageModelEvaluation(*models, Templates())
    await found.run(JOBS)
    return found


async def test_replies_in_the_form_asked_for_reach_the_levels(folder, tmp_path, monkeypatch):
    """The sampler is made to say one JSON object; prompt, route and answer are the engine's own."""
    tokenizer = byte_tokenizer()
    said = '{"questions": ["Q?"], "answer": "15%", "claims": ["15% passed"], "match": true}'
    ids = [*tokenizer.backend_tokenizer.encode(said).ids, tokenizer.eos_token_id]

    def speak(logits, sequences):
        return [ids[one.output_length] for one in sequences], [-1.0] * len(sequences)

    monkeypatch.setattr("pipelinerl.inference.embedded.engine.sample", speak)
    async with running_engine(folder, max_model_len=4096, max_prefill_tokens=2048) as engine:
        found = await evaluation(engine, Replies(tmp_path / "replies.jsonl"))
        again = await evaluation(engine, Replies(tmp_path / "replies.jsonl"))
    counts = found.counts()
    assert counts["valid"] is True and counts["unparseable_share"] == 0.0
    assert (counts["adversary"]["asked"], counts["judge"]["asked"]) == (6, 3)
    levels = found.levels_of(*JOBS[0])
    assert levels.intent and levels.answer and levels.full
    assert levels.questions[0].guess == "15%"
    assert again.counts()["adversary"] == {**counts["adversary"], "replies": 0, "kept": 6}
