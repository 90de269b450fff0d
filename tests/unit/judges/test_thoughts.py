"""Every judge reads what stands behind the thoughts: whichever of the two tags a completion holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from omegaconf import OmegaConf

from domains.coding.verifier_api import extract_code
from domains.counting.counting import answer_of, generate_counting_rollout
from domains.fn_calling.calls import read_calls
from domains.fn_calling.verifier_api import verify_fn_calling_answer
from domains.ifeval.verifier_api import judged_part
from domains.ifeval.verifier_api import verify_answer as verify_instructions
from domains.logic.published import judge_row
from domains.math.answers import verify_answer
from domains.privacy_hopqa.data.json_extract import extract
from domains.raro.parser import extract_answer, parse_verdict
from domains.reasoning_gym.answers import extract_answer as extract_in_format
from domains.tir.tool import program_of
from pipelinerl.async_llm import llm_async_generate
from pipelinerl.base.thoughts import answer_part, thoughts_are_open
from pipelinerl.base.tokenizing import thought_marks
from pipelinerl.engines.openai.chat import TextBeforeCalls, read_tool_calls
from pipelinerl.llm import Prompt, TrainableLLM
from tests.support.fake_engine import FakeEngine
from tests.support.odd_texts import ended_after
from tests.support.text_model import byte_tokenizer


@pytest.mark.parametrize(
    ("completion", "answer", "still_open"),
    [
        ("a", "a", False),
        (" a\n", " a\n", False),
        ("", "", False),
        ("t</think>a", "a", False),
        ("t</think>\n\n a\n", "a\n", False),
        ("<think>t</think>a", "a", False),
        ("<think>t<think>u</think>a", "a", False),
        ("<think>t</think>a<think>u</think>b", "b", False),
        ("t</think>u</think>a", "a", False),
        ("<think>t", "", True),
        ("a<think>t", "a", True),
        ("t</think>a<think>u", "a", True),
        ("t</think>", "", False),
        ("It writes `<think>` first. a", "It writes `<think>` first. a", False),
        ("<think>as '</think>'</think>x.split('</think>')[0]", "x.split('</think>')[0]", False),
        ('</think>"a"', '"a"', False),
        ('t"</think>a', "a", False),
        ('{"x": "<think>"}', '{"x": "<think>"}', False),
        ("t</think>a`<think>`<think>u", "a`<think>`", True),
        # A program that removes thoughts, and words about the tags.
        ('t</think>re.sub(r"<think>.*?</think>", "", x)', 're.sub(r"<think>.*?</think>", "", x)', False),
        ("re.findall('<think>(.+?)</think>(.*)', x)", "re.findall('<think>(.+?)</think>(.*)', x)", False),
        ('t</think>p = f"<think>\\n{x}\\n</think>{y}"', 'p = f"<think>\\n{x}\\n</think>{y}"', False),
        ("t</think>As `<think> ... </think> a`.", "As `<think> ... </think> a`.", False),
        ('t</think>{"text": "<think>u</think>a"}', '{"text": "<think>u</think>a"}', False),
        ("Let's see. It's <think>t</think>a", "a", False),
        ('"t." <think>u</think>a', "a", False),
        ('"no"</think>"Yes"', '"Yes"', False),
        ('t</think>x.split("</think>\\n\\n")[1]', 'x.split("</think>\\n\\n")[1]', False),
        ('p += "<think>\\n"', 'p += "<think>\\n"', False),
    ],
)
def test_the_answer_stands_behind_the_last_thought(completion: str, answer: str, still_open: bool) -> None:
    assert answer_part(completion) == answer
    assert thoughts_are_open(completion) is still_open


FENCED = [
    "```xml\n<think>\nu\n</think>\na\n```",
    '```python\np = """\n<think>\nu\n</think>\n"""\n```\nDone.',
    "```jinja\n{{ '<think>' + '\\n' }}\n<think>\n```",
    "```js\nx.replace(/<think>[^]*<\\/think>/g, '')\n```",
]


@pytest.mark.parametrize("answer", [*FENCED, "```python\nf()  # behind </think>\n```"])
def test_tags_in_a_block_of_the_answer_are_its_text(answer: str) -> None:
    for thoughts in ("t</think>", "<think>t</think>\n\n", "t\n```python\nu\n```\n</think>\n"):
        assert answer_part(thoughts + answer) == answer
    assert answer_part(f"{answer}</think>a") == "a"


@pytest.mark.parametrize("answer", FENCED)
def test_tags_in_a_block_are_text_where_nothing_was_thought(answer: str) -> None:
    assert answer_part(answer) == answer


@pytest.mark.parametrize(
    "thoughts",
    ["```python\nu\n</think>\n", "<think>\n```python\nu\n</think>\n", "t</think>a<think>```\nu\n</think>"],
)
def test_a_block_that_thoughts_leave_open_does_not_hold_their_end(thoughts: str) -> None:
    assert answer_part(f"{thoughts}```python\na\n```") == "```python\na\n```"


CALL = '<tool_call>{{"name": "f", "arguments": {{"x": {}}}}}</tool_call>'
NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
COUNT = '{"question": "q", "answer": "2", "metadata": {}}'


def _engine_calls(text: str) -> str:
    return read_tool_calls(text)[1][0]["function"]["arguments"]


# What a judge reads; a text that says `1`, one that says `2`; what is read of the second alone.
READERS: list[tuple[str, Callable[[str], object], str, str, object]] = [
    ("math", lambda text: verify_answer(text, "2"), r"\boxed{1}", r"\boxed{2}", "correct"),
    ("coding", extract_code, "```python\n1\n```", "```python\n2\n```", "2"),
    ("tir", program_of, "```python\n1\n```", "```python\n2\n```", "2"),
    ("fn_calling", lambda text: [call.arguments["x"] for call in read_calls(text)], CALL.format(1),
     CALL.format(2), [2]),
    ("fn_calling alone", lambda text: [call.arguments["x"] for call in read_calls(text)], CALL.format(1),
     "[f(x=2)]", [2]),
    ("engine", _engine_calls, CALL.format(1), CALL.format(2), '{"x": 2}'),
    ("ifeval", lambda text: verify_instructions(text, NO_COMMA)["answer_status"], "a, b", "a b", "correct"),
    ("ifeval final", judged_part, "[BEGIN FINAL RESPONSE]1[END FINAL RESPONSE]",
     "[BEGIN FINAL RESPONSE]2[END FINAL RESPONSE]", "2"),
    ("logic", lambda text: judge_row("object_counting", COUNT, text), r"\boxed{1}", r"\boxed{2}", "correct"),
    ("raro answer", extract_answer, "<answer>1</answer>", "<answer>2</answer>", "2"),
    ("raro verdict", parse_verdict, "[Answer 1]", "[Answer 2]", "[Answer 2]"),
    ("privacy_hopqa", lambda text: extract(text, "array").value, '[{"q": 1}]', '[{"q": 2}]', [{"q": 2}]),
    ("reasoning_gym", lambda text: extract_in_format(text, "last_number"), "1", "2", "2"),
    ("reasoning_gym text", lambda text: extract_in_format(text, "text"), "1", "2", "2"),
    ("counting", answer_of, "<answer>1</answer>", "<answer>2</answer>", 2),
]  # fmt: skip


@pytest.mark.parametrize(("read", "first", "second", "found"), [one[1:] for one in READERS],
                         ids=[one[0] for one in READERS])  # fmt: skip
def test_a_judge_reads_what_follows_the_thoughts(
    read: Callable[[str], object], first: str, second: str, found: object
) -> None:
    assert read(second) == found, "a completion without thoughts"
    for thoughts in (f"maybe {first}</think>\n", f"<think>maybe {first}</think>\n\n",
                     f"<think>{first}<think>{first}</think>or {first}</think>"):  # fmt: skip
        assert read(thoughts + second) == found


@pytest.mark.parametrize(
    ("read", "nothing"),
    [
        (lambda text: verify_answer(text, "2"), "no_answer"),
        (extract_code, ""),
        (program_of, None),
        (read_calls, []),
        (lambda text: verify_instructions(text, NO_COMMA)["answer_status"], "no_answer"),
        (extract_answer, None),
        (parse_verdict, None),
        (answer_of, None),
        (lambda text: extract_in_format(text, "last_number"), None),
        (lambda text: read_tool_calls(text)[1], []),
    ],
)
def test_thoughts_alone_are_no_answer(read: Callable[[str], object], nothing: object) -> None:
    said = "\n".join((r"\boxed{2}", "```python\n2\n```", CALL.format(2), "[Answer 2]", "<answer>2</answer>"))
    assert read(f"{said}</think>") == read(f"<think>{said}</think>\n") == read(f"<think>{said}") == nothing


def test_an_engine_shows_a_call_in_thoughts_as_text() -> None:
    text, calls = read_tool_calls(f"{CALL.format(1)}</think>\nI look. {CALL.format(2)}")
    assert text == f"{CALL.format(1)}</think>\nI look." and len(calls) == 1
    quoted = f"<think>{CALL.format(1)}</think> No call is needed."
    assert read_tool_calls(quoted) == (quoted, [])


@pytest.mark.parametrize("tag", ["answer", "response"])
def test_ifeval_reads_what_a_tag_of_the_answer_holds(tag: str) -> None:
    """Hunyuan, Granite 3.3 and ERNIE write such tags behind their thoughts."""
    capitals: Any = {"instruction_id_list": ["change_case:english_capital"], "kwargs": [{}]}
    said = f"<{tag}>\nYES\n</{tag}>"
    assert judged_part(f"<think>no</think>\n{said}") == "YES"
    assert verify_instructions(f"no</think>\n{said}", capitals)["answer_status"] == "correct"
    for other in (f"So: {said}", f"<{tag}>\nYES"):
        assert judged_part(f"no</think>{other}") == other
    assert judged_part(said) == said, "nothing was thought: a prompt may ask for tags"


def test_ifeval_takes_the_thoughts_away_once() -> None:
    said = "```python\nf()  # BEHIND </think>\n```"
    assert judged_part(f"a, b</think>{said}") == said
    assert verify_instructions(f"a, b</think>{said}", NO_COMMA)["answer_status"] == "correct"
    later = {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["BEHIND"]}]}
    assert verify_instructions(f"a, b</think>{said}", later)["answer_status"] == "correct"


ROOT = Path(__file__).parents[3]
RIGHT = "<answer>2</answer>"
TAGS = ["<|start|>", "<think>", "</think>"]
TURN = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
CFG = OmegaConf.create({"actor": {"system_prompt": "", "task_template": ""}})


async def _counted(tokenizer: Any, template: str, written: str) -> tuple[Any, Any]:
    """Metrics of a rollout of `counting` in which the engine samples these tokens, and a call alike."""
    tokenizer.chat_template = template
    sampled = tokenizer(written, add_special_tokens=False).input_ids
    with FakeEngine(lambda prompt: [*sampled, tokenizer.eos_token_id], max_model_len=4096) as engine:
        llm = TrainableLLM(base_url=engine.url, tokenizer=tokenizer, collect_logprobs=True, context_size=4096)
        async with aiohttp.ClientSession() as session:
            call = await llm_async_generate(llm, Prompt.from_user_message("q"), session)
            problem = {"word": "a", "text": "a a", "count": 2}
            result = await generate_counting_rollout(CFG, llm, problem, session)
    return result.metrics, call


@pytest.mark.parametrize(
    ("prompt_end", "written", "success"),
    [
        ("<think>\n", f"It may be {RIGHT}, or", False),  # cut off in its thoughts: nothing was answered
        ("<think>", RIGHT, False),
        ("<think>\n", f"Or 1?</think>\n{RIGHT}", True),
        ("<think>\n", f"<think>Or 1?</think>{RIGHT}", True),
        ("<think>\n\n</think>\n\n", f"It is {RIGHT}", True),  # templates that switch thoughts off
        ("", RIGHT, True),
    ],
)
@pytest.mark.parametrize("special", [False, True])
async def test_thoughts_that_the_prompt_began_are_no_answer(
    prompt_end: str, written: str, success: bool, special: bool
) -> None:
    tokenizer = byte_tokenizer()
    if special:  # as `add_special_tokens` makes them: a plain text of the answer has neither tag
        tokenizer.add_special_tokens({"additional_special_tokens": TAGS})
    metrics, call = await _counted(tokenizer, TURN + prompt_end, written)
    assert (metrics.success, metrics.no_answer) == (success, not success)
    plain = written.replace("<think>", "").replace("</think>", "") if special else written
    assert call.output.content == plain, "what a rollout function reads stays what was sampled"


async def test_tags_that_are_special_tokens_divide_thoughts_from_the_answer() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": TAGS})
    for written in (f"<answer>1</answer></think>{RIGHT}", f"<think><answer>1</answer></think>\n{RIGHT}"):
        assert (await _counted(tokenizer, TURN, written))[0].success
    assert not (await _counted(tokenizer, TURN, f"<think>{RIGHT}"))[0].success


FAMILIES = [
    ("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("◁think▷", "◁/think▷"),  # Kimi-VL
    ("<longcat_think>", "</longcat_think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel>", "<channel|>"),  # Gemma 4
]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("opens", "closes"), FAMILIES)
async def test_tokens_of_other_families_divide_thoughts_from_the_answer(
    opens: str, closes: str, special: bool
) -> None:
    tokenizer = byte_tokenizer()
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": [opens, closes]})
    else:
        tokenizer.add_tokens([opens, closes])
    wrong = "<answer>1</answer>"
    assert (await _counted(tokenizer, TURN, f"{opens}{wrong}{closes}\n{RIGHT}"))[0].success
    _, call = await _counted(tokenizer, TURN, f'{opens}I say "no"{closes}"Yes"')
    assert answer_part(call.completion) == '"Yes"', "a token is no quoted tag"
    _, call = await _counted(tokenizer, TURN, f'{opens}"no"{closes}"...so"')
    assert answer_part(call.completion) == '"...so"'
    assert (await _counted(tokenizer, TURN, f"{opens}{RIGHT}{closes}"))[0].no_answer
    assert (await _counted(tokenizer, TURN, f"{opens}{RIGHT}"))[0].no_answer  # cut off
    assert (await _counted(tokenizer, TURN + opens, f"{RIGHT} or"))[0].no_answer
    assert (await _counted(tokenizer, TURN + opens + "\n", f"{wrong}{closes}{RIGHT}"))[0].success
    assert (await _counted(byte_tokenizer(), TURN, f"{opens} is {RIGHT}"))[0].success  # words are no tokens


@pytest.mark.parametrize(
    ("written", "success", "no_answer"),
    [
        (f"<|channel|>analysis<|message|>{RIGHT}", False, True),
        (f"<|channel|>analysis<|message|>{RIGHT}<|call|><|start|>assistant<|channel|>final", False, True),
        ("<|channel|>analysis<|message|><answer>1</answer><|call|><|start|>assistant<|channel|>final<|message|>"
         f"{RIGHT}", True, False),
        (f"<|channel|>commentary<|message|>{RIGHT}<|call|><|start|>assistant<|channel|>final<|message|>"
         "<answer>1</answer>", False, False),
        (f"<|channel|>final<|message|>{RIGHT}", True, False),
        (RIGHT, True, False),
    ],
)  # fmt: skip
async def test_only_the_final_channel_of_gpt_oss_is_the_answer(
    written: str, success: bool, no_answer: bool
) -> None:
    tokenizer = byte_tokenizer()
    names = ["<|start|>", "<|channel|>", "<|message|>", "<|call|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    metrics, call = await _counted(tokenizer, TURN + "<|start|>assistant", written)
    assert (metrics.success, metrics.no_answer) == (success, no_answer)
    assert "<|" not in call.output.content, "the text is what engines write"


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|message|>",
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>",
    ],
)
async def test_calls_of_gpt_oss_are_shown_to_judges(header: str) -> None:
    tokenizer = byte_tokenizer()
    names = ["<|start|>", "<|channel|>", "<|message|>", "<|call|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    written = f'<|channel|>analysis<|message|>Well.{header}{{"x": 1}}<|call|>'
    _, call = await _counted(tokenizer, TURN, written)
    none = {"category": "irrelevance", "function": [], "ground_truth": []}
    assert verify_fn_calling_answer(call.completion, none)["answer_status"] == "unparsable"


async def test_marks_without_end_are_read_in_time() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|channel|>", "<|message|>"]})
    ids = np.tile(np.array(tokenizer("<|channel|><|start|><|message|>final").input_ids, np.int32), 10_000)
    with ended_after(60):
        assert len(thought_marks(tokenizer, ids)) == 10_000
        ids = np.full(80_000, tokenizer.convert_tokens_to_ids("<|channel|>"), np.int32)
        assert {tag for _, _, tag in thought_marks(tokenizer, ids)} == {"<think>"}


def test_every_domain_judges_the_completion() -> None:
    """`output.content` does not say that the prompt began the thoughts."""
    read = [path for path in (ROOT / "domains").rglob("*.py") if "output.content" in path.read_text()]
    assert not read


def test_an_engine_reads_no_call_in_thoughts_that_the_prompt_began() -> None:
    cut = f"maybe {CALL.format(1)} or"
    assert read_tool_calls(cut, opened=True) == (cut, [])
    assert _arguments(read_tool_calls(f"{cut}</think>{CALL.format(2)}", opened=True)) == ['{"x": 2}']
    came = TextBeforeCalls(opened=True)
    assert "".join(came.add(letter) for letter in cut) == cut
    came = TextBeforeCalls(opened=True)
    assert (
        "".join(came.add(letter) for letter in f"{cut}</think>Well{CALL.format(2)}") == f"{cut}</think>Well"
    )


def _arguments(read: tuple[str | None, list[dict[str, Any]]]) -> list[str]:
    return [call["function"]["arguments"] for call in read[1]]
