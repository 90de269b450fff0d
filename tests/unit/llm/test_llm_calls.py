"""Calls to an engine: ids in, ids out, nothing tokenised twice."""

import copy

import aiohttp
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from pipelinerl.async_llm import (
    RetryableAbortedCompletionError,
    llm_async_generate,
    make_training_text,
    make_training_texts_from_llm_calls,
)
from pipelinerl.base.tokenizing import decode, encode
from pipelinerl.engines.client import EngineRequestError
from pipelinerl.engines.fleet import Fleet
from pipelinerl.engines.llm_logprobs import text_ids
from pipelinerl.engines.requests import Deadlines
from pipelinerl.llm import LLMCall, LLMOutput, LLMStream, Prompt, TokenLogprob, TokenLogprobs, TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutOrigin
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_model import build_tokenizer, save_model

TOKENIZER = build_tokenizer()
EOS = TOKENIZER.eos_token_id


def ids(text: str) -> list[int]:
    return TOKENIZER.convert_tokens_to_ids(list(text))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(lambda prompt: [*ids(str(len(prompt))), EOS], version="8") as running:
        yield running


@pytest.fixture
def llm(engine, folder):
    engine.misbehave.clear()
    parameters = {"max_tokens": 16, "temperature": 0.7}
    return TrainableLLM(
        model_name=folder, base_url=engine.url, parameters=parameters, context_size=400, collect_logprobs=True
    )


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as opened:
        yield opened


async def test_a_call_carries_ids_logprobs_versions_and_text(llm, session):
    call = await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    assert decode(TOKENIZER, call.prompt_token_ids, False) == "<u>hi<e><a>"
    assert call.output.content == "5"
    assert call.output_token_ids.tolist() == [*ids("5"), EOS]
    assert call.weight_versions == [(8, 0, 2)]
    assert call.logprobs[0] == TokenLogprob(logprob=-0.5, token_id=ids("5")[0])
    assert "logprobs" not in call.model_dump() and llm.get_stats()["calls"] == 1


async def test_a_training_text_holds_what_the_engine_saw_and_sampled(llm, session):
    call = await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    made = make_training_text(llm, call)
    assert made.input_ids.tolist() == [*call.prompt_token_ids.tolist(), *ids("5"), EOS]
    assert made.labels.tolist() == [-100] * 5 + [*ids("5"), EOS]
    assert (made.prompt_text, made.output_text) == ("<u>hi<e><a>", "5<e>")
    assert (made.finished, made.finish_reason, made.prompt_tokens, made.output_tokens) == (True, "stop", 5, 2)
    assert made.weight_versions == [(8, 0, 2)] and len(made.logprobs) == 2
    (rewarded,) = make_training_texts_from_llm_calls(llm, [call], reward=0.5)
    assert rewarded.reward == 0.5


@pytest.mark.parametrize("edited", [False, True])
async def test_an_answer_is_trained_behind_the_prompt_that_a_policy_puts_in_place(llm, session, edited):
    told, asked = {"role": "system", "content": "hint"}, {"role": "user", "content": "hi"}
    call = await llm_async_generate(llm, Prompt(messages=[told, asked]), session)
    assert decode(TOKENIZER, call.prompt_token_ids, False) == "<s>hint<e><u>hi<e><a>"
    if edited:
        call.prompt.messages.pop(0)
    else:
        call.prompt = Prompt(messages=[asked])
    made = make_training_text(llm, call)
    # By hand, from the template: five tokens of the prompt without the hint, then what was sampled.
    prompt = [TOKENIZER.convert_tokens_to_ids(token) for token in ("<u>", "h", "i", "<e>", "<a>")]
    assert made.input_ids.tolist() == prompt + call.output_token_ids.tolist()
    assert made.labels.tolist() == [-100] * 5 + call.output_token_ids.tolist()
    assert made.prompt_tokens == 5 and made.weight_versions == [(8, 0, made.output_tokens)]


async def test_messages_behind_the_prompt_do_not_change_what_was_asked(llm, session):
    call = await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    before = make_training_text(llm, call).input_ids.tolist()
    call.prompt.messages += [{"role": "assistant", "content": "5"}, {"role": "user", "content": "more"}]
    assert make_training_text(llm, call).input_ids.tolist() == before
    call.prompt.messages.clear()
    with pytest.raises(ValueError, match="neither prompt_token_ids nor a prompt"):
        make_training_text(llm, call)


async def test_another_prompt_is_remarked_once_in_training(llm, session, monkeypatch, caplog):
    monkeypatch.setattr("pipelinerl.async_llm._ANOTHER_PROMPT_SAID", set())
    call = await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    call.prompt = Prompt.from_user_message("ho")
    for training in (False, True, True):
        ROLLOUT_ORIGIN.set(RolloutOrigin("g", 0, 0, training))
        make_training_text(llm, call)
    ROLLOUT_ORIGIN.set(None)
    (record,) = caplog.records
    assert "changes the prompt of a call" in record.message


async def test_an_answer_cut_by_length_gets_its_end_of_turn_from_the_template(llm, session, engine):
    engine.misbehave.append(engine.reply(ids("12"), "length"))
    call = await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    assert not make_training_text(llm, call).finished
    prompt = llm.continue_prompt(call, [{"role": "user", "content": "go on"}])
    assert decode(TOKENIZER, prompt.token_ids, False) == "<u>hi<e><a>12<e><u>go on<e><a>"


async def test_two_aborted_answers_are_one_retryable_error(llm, session, engine):
    engine.misbehave.extend([engine.reply(ids("1"), "abort"), engine.reply([])])
    with pytest.raises(RetryableAbortedCompletionError, match="2 aborted or empty answers"):
        await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    engine.misbehave.append(engine.reply([]))
    assert await llm_async_generate(llm, Prompt.from_user_message("hi"), session)


async def test_a_lost_engine_is_tried_again_and_a_refusal_is_not(llm, session, engine):
    llm.base_delay = 0.001
    engine.misbehave.extend([500, 503])
    assert await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    engine.misbehave.append(422)
    with pytest.raises(EngineRequestError, match="told to say 422"):
        await llm_async_generate(llm, Prompt.from_user_message("hi"), session)


async def test_the_context_limits_the_answer(llm, session, engine):
    llm.context_size = 10
    await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    assert engine.sampling[-1]["max_tokens"] == 5
    await llm_async_generate(llm, Prompt.from_user_message("hi"), session, max_tokens_override=2)
    assert engine.sampling[-1]["max_tokens"] == 2
    # A budget that is used up is no missing budget.
    assert llm.sampling(4, 0).max_tokens == 0
    assert llm.model_copy(update={"parameters": {"max_tokens": 0}}).sampling(4).max_tokens == 0
    assert llm.model_copy(update={"parameters": {"max_tokens": None}}).sampling(4).max_tokens == 6
    with pytest.raises(ValueError, match="prompt has 12 tokens, the context 10"):
        await llm_async_generate(llm, Prompt.from_user_message("123456789"), session)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda llm: llm.model_copy(deep=True)])
async def test_a_policy_may_deep_copy_its_model(llm, session, engine, copied):
    async with Fleet([llm.base_url], session, Deadlines()) as fleet:
        bound = llm.bind(fleet, llm.base_url, seed=7, runner=lambda ask: ask(session))
        bound.load_tokenizer()
        other = copied(bound)
        other.parameters["max_tokens"] = 1
        for asked in (bound, other, bound):
            await llm_async_generate(asked, Prompt.from_user_message("hi"), session)
    before, between, after = engine.sampling[-3:]
    assert between["max_tokens"] == 1 and before["max_tokens"] == after["max_tokens"] != 1
    assert len({one["seed"] for one in (before, between, after)}) == 3
    assert bound.get_stats()["calls"] == 3


@pytest.mark.parametrize("name", ["model", "messages", "logprobs", "n"])
async def test_parameters_never_override_the_request(llm, session, name):
    llm.parameters[name] = 1
    with pytest.raises(ValueError, match=rf"llm\.parameters\.{name} is no sampling parameter; allowed: max"):
        await llm_async_generate(llm, Prompt.from_user_message("hi"), session)


@pytest.mark.parametrize(("given", "sent"), [("Paris", ["Paris"]), (["a", "b"], ["a", "b"]), (None, None)])
async def test_a_stop_text_is_one_text(llm, session, engine, given, sent):
    llm.parameters["stop"] = given
    await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    assert engine.sampling[-1].get("stop") == sent
    llm.parameters["stop_token_ids"] = 7
    await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    assert engine.sampling[-1]["stop_token_ids"] == [7]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", [""]),
        ("stop", 3),
        ("stop_token_ids", "12"),
        ("stop", {"END": 1}),
        ("stop", b"END"),
        ("stop_token_ids", 7.5),
    ],
)
async def test_what_cannot_end_an_answer_is_refused(llm, session, name, value):
    llm.parameters[name] = value
    with pytest.raises(ValueError, match=rf"^llm\.parameters\.{name}=.* ends nothing; give an? ") as told:
        await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("sampled", "stop", "content"),
    [
        ("12345", "45", "123"),
        ("1212", "2", "121"),  # the first 2 was sampled below min_tokens
        ("123", ids("3")[0], "12"),
        ("333", ids("3")[0], "33"),
        ("123", None, "123"),
        ("12", "never sampled", "12"),
    ],
)
async def test_the_text_of_an_answer_ends_before_what_stopped_it(
    llm, session, engine, sampled, stop, content
):
    answer = engine.reply(ids(sampled))
    answer["choices"][0]["stop_reason"] = stop
    engine.misbehave.append(answer)
    call = await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    assert call.output.content == content
    assert make_training_text(llm, call).output_text == sampled  # what was sampled is what is trained


async def test_an_empty_prompt_is_refused(llm, session):
    with pytest.raises(ValueError, match="neither messages nor token_ids"):
        await llm_async_generate(llm, Prompt(), session)


def test_samples_need_logprobs_and_an_answer_that_was_not_aborted(llm):
    call = LLMCall(prompt=Prompt(), output=LLMOutput(content="5"), llm_info={"finish_reason": "abort"})
    with pytest.raises(RetryableAbortedCompletionError):
        make_training_text(llm, call)
    call.llm_info = {}
    with pytest.raises(ValueError, match="collect_logprobs=True"):
        make_training_text(llm, call)


@pytest.mark.parametrize(("last", "finished"), [(EOS, True), (ids("7")[0], False)])
def test_without_a_reason_the_end_token_decides(llm, last, finished):
    sampled = TokenLogprobs(np.array([*ids("4"), last]), np.array([-1.0, -1.0]))
    call = LLMCall(
        prompt=Prompt(), output=LLMOutput(content="4"), logprobs=sampled, prompt_token_ids=ids("hi")
    )
    assert make_training_text(llm, call).finished is finished


def test_a_blocking_call_needs_no_loop(llm):
    assert llm.quick_response("hi") == "5"
    assert llm.generate(Prompt.from_user_message("hi")).get_llm_call().output.content == "5"


@pytest.mark.parametrize(
    ("sampled", "stop", "completion"),
    [
        ("So <answer>4</answer>", "</answer>", "So <answer>4</answer>"),
        ("no tag 4</answer>", "</answer>", "no tag 4"),
        (
            "[BEGIN FINAL RESPONSE]y[END FINAL RESPONSE]",
            "[END FINAL RESPONSE]",
            "[BEGIN FINAL RESPONSE]y[END FINAL RESPONSE]",
        ),
        ("```py\nx\n```", "\n```", "```py\nx\n```"),
        ("5</s>", "</s>", "5"),
        ("5\n\nQuestion:", "Question:", "5\n\n"),
    ],
)
async def test_judges_read_a_stop_text_that_closes_what_was_opened(
    session, engine, tmp_path, sampled, stop, completion
):
    folder = save_model(tmp_path / "marks", "</>[]`")
    model = TrainableLLM(model_name=str(folder), base_url=engine.url, context_size=400, collect_logprobs=True)
    answer = engine.reply(model.load_tokenizer().convert_tokens_to_ids(list(sampled)))
    answer["choices"][0]["stop_reason"] = stop
    engine.misbehave.append(answer)
    call = await llm_async_generate(model, Prompt.from_user_message("hi"), session)
    assert call.completion == completion
    assert call.output.content == sampled.removesuffix(stop)


def test_tokens_are_counted_with_and_without_template(llm):
    assert llm.count_tokens("hello") == 5
    asked = [{"role": "user", "content": "hello"}]
    assert llm.count_tokens(asked) == len("hello") + 3, "<u>, <e>, and <a> that begins the answer"
    assert llm.count_tokens([*asked, {"role": "assistant", "content": "hi"}]) == len("hellohi") + 4


@pytest.fixture
def beginning(llm, tmp_path):
    """A model whose tokeniser writes `<u>` before a plain text, as that of Llama does."""
    tokenizer = build_tokenizer()
    tokenizer.bos_token = "<u>"
    pair = ("<u>", tokenizer.convert_tokens_to_ids("<u>"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<u> $A", special_tokens=[pair])
    tokenizer.save_pretrained(tmp_path)
    return llm.model_copy(update={"tokenizer": None, "tokenizer_name": str(tmp_path)})


def test_the_token_of_a_beginning_counts_and_is_scored(beginning):
    assert beginning.count_tokens("hello") == 1 + 5
    begin = beginning.load_tokenizer().bos_token_id
    expected = [begin, *ids("hi")], ids("5")
    assert text_ids(beginning, "hi", "5", begins=True) == expected
    assert text_ids(beginning, "<u>hi", "5", begins=True) == expected, "once"
    assert text_ids(beginning, "hi", "5") == (ids("hi"), ids("5")), "a rendered prompt has what it needs"


def test_a_tokenizer_that_writes_no_beginning_gets_none(llm):
    assert text_ids(llm, "hi", "5", begins=True) == (ids("hi"), ids("5"))


async def test_what_a_call_says_of_its_model_is_not_changed_behind_it(llm, session):
    call = await llm_async_generate(llm, Prompt.from_user_message("hi"), session)
    llm.parameters["max_tokens"] = 1
    said = {name: call.llm_info[name] for name in ("model_name", "parameters", "context_size")}
    parameters = {"max_tokens": 16, "temperature": 0.7}
    assert said == {"model_name": llm.model_name, "parameters": parameters, "context_size": 400}


async def test_the_call_of_a_stream_is_there_after_its_text_was_read(llm, session):
    stream = await llm.agenerate(Prompt.from_user_message("hi"), session)
    assert [event.output.content for event in stream] == ["5"]
    assert stream.get_llm_call() is stream.llm_call and stream.get_text() == "5"
    with pytest.raises(ValueError, match="ended without a call"):
        LLMStream(iter([]), Prompt()).get_llm_call()


def test_an_answer_from_elsewhere_without_text_has_no_tokens(llm):
    call = llm.log_output(Prompt.from_user_message("hi"), LLMOutput(content=""))
    assert (call.prompt_length_tokens, call.output_length_tokens) == (5, 0)


def test_ids_are_scored_behind_ids_only(llm):
    with pytest.raises(ValueError, match="give ids for both"):
        llm.get_logprobs([1], "5")


def test_the_template_of_a_policys_tokenizer_gives_ids(llm):
    """Before transformers 5, which upstream's policies were written for, that was the default."""
    tokenizer, messages = llm.load_tokenizer(), [{"role": "user", "content": "a long question"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    given = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert given == encode(tokenizer, text).tolist() and len(given) > 10
    fields = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert fields["input_ids"] == given


def test_a_message_is_read_like_a_dict_as_upstreams_is():
    """Upstream's is litellm's, which has a field for every name that it declares."""
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    output = LLMOutput(content="hi", tool_calls=[call])
    assert output["content"] == output.get("content") == "hi" and output.get("refusal", "none") == "none"
    assert "tool_calls" in output and "refusal" not in output
    first = output["tool_calls"][0]
    assert (first["type"], first["function"]["name"]) == ("function", "f")
    output["content"] = "there"
    assert output.content == "there"
    with pytest.raises(KeyError, match="refusal"):
        output["refusal"]


def test_a_call_made_of_an_engines_answer_is_learnt_with_its_prompt(llm):
    call = llm.log_output(Prompt.from_user_message("hi"), LLMOutput(content="5"), count_tokens=False)
    assert (call.prompt_length_tokens, call.output_length_tokens) == (-1, -1)
    call.logprobs = [TokenLogprob(token_id=ids("5")[0], logprob=-0.5), TokenLogprob(token_id=EOS, logprob=-1)]
    call.prompt_length_tokens = len("hi") + 3
    made = make_training_text(llm, call)
    assert decode(TOKENIZER, made.input_ids, False) == "<u>hi<e><a>5<e>" and made.prompt_tokens == 5
    assert made.labels.tolist() == [-100] * 5 + [*ids("5"), EOS] and made.finished
    call.prompt_length_tokens = 9
    with pytest.raises(ValueError, match=r"the prompt has 5 tokens .* and the engine counted 9"):
        make_training_text(llm, call)
    call.prompt = Prompt()
    with pytest.raises(ValueError, match="neither prompt_token_ids nor a prompt"):
        make_training_text(llm, call)


def test_the_lengths_of_an_answer_from_elsewhere_are_counted(llm):
    call = llm.log_output(Prompt.from_user_message("hi"), LLMOutput(content="four"))
    assert (call.prompt_length_tokens, call.output_length_tokens) == (5, len("four") + 1)


def test_a_bound_copy_has_its_own_parameters_and_seeds(llm):
    one, two = llm.bind(None, "http://a", seed=5), llm.bind(None, "http://b", seed=5)
    one.parameters["max_tokens"] = 1
    assert two.parameters["max_tokens"] == 16 and llm.parameters["max_tokens"] == 16
    seeds = []
    for _ in range(3):
        seeds.append(two.sampling(4).seed)
        two.count_call(4, 1)
    assert len(set(seeds)) == 3 and one.sampling(4).seed == seeds[0]
    assert llm.sampling(4).seed is None


def test_a_missing_tokenizer_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        TrainableLLM(model_name=str(tmp_path)).load_tokenizer()
    with pytest.raises(ValueError, match="no tokenizer"):
        TrainableLLM().load_tokenizer()


@pytest.mark.parametrize(
    ("changed", "training", "said"),
    [
        ({"temperature": 0.5, "top_p": 0.9}, True, "temperature=0.5, top_p=0.9"),
        ({"top_k": -1, "max_tokens": 4, "stop": ["x"]}, True, None),
        ({"temperature": 0.5}, False, None),
    ],
)
async def test_training_on_tokens_of_other_probabilities_is_said(
    llm, session, caplog, monkeypatch, changed, training, said
):
    monkeypatch.setattr("pipelinerl.async_llm._RESHAPED_SAID", set())
    origin = ROLLOUT_ORIGIN.set(RolloutOrigin("0-000001", 0, 8, training))
    async with Fleet([llm.base_url], session, Deadlines()) as fleet:
        bound = llm.bind(fleet, llm.base_url)
        other = bound.model_copy(update={"parameters": {**bound.parameters, **changed}})
        call = await llm_async_generate(other, Prompt.from_user_message("hi"), session)
        for _ in range(2):
            make_training_text(bound, call)
    ROLLOUT_ORIGIN.reset(origin)
    lines = [record.getMessage() for record in caplog.records if "the rollout policy samples" in record.msg]
    assert len(lines) == (said is not None) and all(f"samples with {said}, and" in line for line in lines)
