"""Bodies that no client should send to an engine: one line with the field or value that was wrong."""

import json
from pathlib import Path
from typing import Any

from tests.support.engine_harness import running_engine
from tests.support.one_line import check_one_line
from tests.support.text_model import build_text_model

Case = tuple[Any, str]
DEEP = b"[" * 50_000
DEEP_CALL = {"function": {"name": "f", "arguments": DEEP.decode()}}
SAMPLING = {"max_tokens": 2, "temperature": 1.0, "logprobs": 0}


def generate(**fields: Any) -> dict[str, Any]:
    return {"token_ids": [1, 2], "sampling_params": SAMPLING, "stream": False, **fields}


def sampling(**fields: Any) -> dict[str, Any]:
    return generate(sampling_params={**SAMPLING, **fields})


ENGINE: dict[str, list[Case]] = {
    "/inference/v1/generate": [
        (b"", "token_ids"),
        (b"{", "truncated"),
        (b"[1]", "array"),
        (b"null", "null"),
        (b"\xff", "byte 0"),
        (DEEP, "array"),
        ({}, "token_ids"),
        ({"token_ids": [1]}, "sampling_params"),
        (generate(token_ids=[]), "the prompt is empty"),
        (generate(token_ids="abc"), "$.token_ids"),
        (generate(token_ids=[1.5]), "$.token_ids[0]"),
        (generate(token_ids=[True]), "$.token_ids[0]"),
        (generate(token_ids=[-1]), "-1"),
        (generate(token_ids=[999_999]), "999999"),
        (generate(token_ids=[2**70]), str(2**70)),
        (generate(token_ids=[1] * 5000), "5000 prompt tokens"),
        (generate(stream="yes"), "$.stream"),
        (generate(request_id=5), "$.request_id"),
        (generate(tokens=[1]), "`tokens`"),
        (sampling(max_tokens=0), "max_tokens 0"),
        (sampling(max_tokens=-3), "max_tokens -3"),
        (sampling(max_tokens="many"), "$.sampling_params.max_tokens"),
        (sampling(max_tokens=10**9), "1000000000"),
        (sampling(temperature=-1), "temperature -1.0"),
        (sampling(temperature="hot"), "$.sampling_params.temperature"),
        (b'{"token_ids":[1],"sampling_params":{"max_tokens":2,"temperature":NaN}}', "byte 65"),
        (sampling(top_p=0), "top_p 0.0"),
        (sampling(top_p=2), "top_p 2.0"),
        (sampling(top_k=-7), "top_k -7"),
        (sampling(min_p=3), "min_p 3.0"),
        (sampling(seed="x"), "$.sampling_params.seed"),
        (sampling(stop_token_ids=[9999]), "9999"),
        (sampling(stop_token_ids=[-1] * 100_000), "stop_token_ids [-1, -1"),
        (sampling(min_tokens=9), "min_tokens 9"),
        (sampling(n=0), "n 0"),
        (sampling(n=1000), "n 1000"),
        (sampling(logprobs=99), "logprobs 99"),
        (sampling(prompt_logprobs=-4), "prompt_logprobs -4"),
        (sampling(best_of=3), "`best_of`"),
        (sampling(stop="a"), "stop strings need text"),
        (sampling(repetition_penalty=0), "repetition_penalty 0"),
        (sampling(presence_penalty=3), "presence_penalty 3"),
        (sampling(frequency_penalty=5), "frequency_penalty 5.0 must lie in [-2, 2]"),
        (generate(model="gpt"), "model 'gpt' is not served; this is 'model'"),
    ],
    "/v1/completions": [
        (b'{"prompt":"\xff\xfe"}', "utf-8"),
        ({"prompt": [[1]] * 200_000}, "200000 sequences in one request"),
        ({"prompt": ["a"] * 200_000, "n": 2}, "400000 sequences in one request"),
        ({}, "prompt"),
        (b"{", "truncated"),
        ({"prompt": 5}, "$.prompt"),
        ({"prompt": [1.5]}, "$.prompt[0]"),
        ({"prompt": "hi", "max_tokens": 0}, "max_tokens 0"),
        ({"prompt": "hi", "n": -1}, "n -1"),
        ({"prompt": "hi", "model": "other"}, "'other'"),
        ({"prompt": "hi", "model": "other" * 100_000}, "model 'other"),
        ({"prompt": "hi", "temperature": "x"}, "$.temperature"),
    ],
    "/v1/chat/completions": [
        ({}, "messages"),
        (b"nope", "malformed"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "hi"}, "$.messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "'nobody'"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": "t"}, "$.tools"),
        (b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"a": ' + DEEP + b"]" * 50_000, "nest"),
        ({"messages": [{"role": "assistant", "tool_calls": [DEEP_CALL]}]}, "nest them less"),
    ],
    "/pause?mode=keep&clear=1": [({}, "'clear'")],
    "/resume?now=1": [({}, "'now'")],
    "/reset_prefix_cache?all=1": [({}, "'all'")],
    "/reset_prefix_cache?reset_running_requests=maybe": [({}, "'maybe'")],
    "/abort_requests": [({"ids": []}, "`ids`")],
    "/init_weight_transfer_engine": [({"init_info": {"world_size": 2}}, "`world_size`")],
    "/start_weight_update": [({"version": "1"}, "`version`")],
    "/update_weights": [
        ({}, "update_info"),
        (b"{", "truncated"),
        ({"update_info": {"names": []}}, "`names`"),
    ],
    "/finish_weight_update": [({"version": "1"}, "`version`")],
    "/update_weight_version": [
        ({"weight_version": "one"}, "'one'"),
        ({"weight_version": "9" * 5000}, "at most 18 digits"),
    ],
    "/weight_checker": [({"action": "snapshot"}, "`action`")],
    "/shutdown_weight_transfer_engine": [({"now": True}, "`now`")],
    "/v1/embeddings": [({}, "POST /v1/embeddings: Not Found")],
}


async def test_an_engine_refuses_each_body_and_goes_on(tmp_path: Path) -> None:
    async with running_engine(build_text_model(tmp_path), max_model_len=128) as engine:
        for path, cases in ENGINE.items():
            for body, value in cases:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                answer = await engine.session.post(engine.url + path, data=data)
                name = f"{path} {data[:80]!r}"
                assert 400 <= answer.status < 500, f"{name}: {answer.status}"
                check_one_line((await answer.json())["error"]["message"], value, name)
        assert engine.server.engine.metrics.generation_tokens == 0
        assert (await engine.post("/inference/v1/generate", generate()))["choices"]
