"""The route by which programs compare an engine's tokeniser with theirs."""

from pathlib import Path

from tests.support.engine_harness import running_engine
from tests.support.text_model import byte_tokenizer


async def test_a_text_has_the_ids_that_its_tokeniser_gives(folder: Path) -> None:
    text = "añb <|end|> 🙂"
    expected = byte_tokenizer().encode(text, add_special_tokens=False)
    async with running_engine(folder) as engine:
        answer = await engine.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        refused = await engine.post("/tokenize", {"prompts": text}, expect=400)
        await engine.post("/tokenize", {"prompt": text, "model": "another"}, expect=404)
    assert answer == {"count": len(expected), "tokens": expected}
    assert "prompts" in refused["error"]["message"]
