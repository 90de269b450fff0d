"""New weights reach running requests: nothing lost, exact spans, ties, order, refusals."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_harness import RunningEngine, full_logprobs, random_prompt, reference, running_engine, until

from pipelinerl.inference.client import Generation, SamplingParams
from pipelinerl.weights.checksum import checksum
from pipelinerl.weights.file import FileTransport
from pipelinerl.weights.publisher import Publisher

GREEDY = SamplingParams(max_tokens=150, temperature=0.0, ignore_eos=True)


async def wait_for_tokens(engine: RunningEngine, count: int) -> None:
    await until(lambda: engine.server.engine.metrics.generation_tokens >= count)


async def update(
    engine: RunningEngine,
    transport: FileTransport,
    model: Any,
    version: int,
    clear_cache: str,
    *,
    prepare: bool = False,
) -> None:
    """The calls of the publisher, one by one; with `prepare` the file is gone before the pause."""
    await engine.post("/init_weight_transfer_engine", {"init_info": {}})
    info = transport.stage(version, model.named_parameters()).info
    if prepare:
        await engine.post("/prepare_weights", {"update_info": info})
        await asyncio.to_thread(Path(info["path"]).unlink)
    await engine.post(f"/pause?mode=keep&clear_cache={clear_cache}")
    await engine.post("/start_weight_update")
    await engine.post("/update_weights", {"update_info": info})
    await engine.post("/finish_weight_update", {"weight_version": str(version)})
    await engine.post("/resume")


async def streams_with_an_update(
    folder: Path, other: Path, tmp_path: Path, clear_cache: str, *, prepare: bool = False
) -> tuple[list[Generation], list[Generation]]:
    """Eight greedy streams without an update, and the same with one in the middle."""
    prompts = [random_prompt(20 + 7 * seed, seed) for seed in range(8)]
    transport = FileTransport(tmp_path)
    async with running_engine(folder) as engine:
        await update(engine, transport, reference(folder), 0, clear_cache)
        plain = await asyncio.gather(*(engine.client.generate(one, GREEDY) for one in prompts))
        before = engine.server.engine.metrics.generation_tokens
        calls = [asyncio.ensure_future(engine.client.generate(one, GREEDY)) for one in prompts]
        await wait_for_tokens(engine, before + 8 * 20)
        await update(engine, transport, reference(other), 1, clear_cache, prepare=prepare)
        return plain, list(await asyncio.gather(*calls))


def boundary(generation: Generation) -> int:
    (old, start, middle), (new, again, end) = generation.versions
    assert (old, start, new, again, end) == (0, 0, 1, middle, 150)
    return middle


@pytest.mark.parametrize("prepare", [False, True])
async def test_no_stream_is_lost_and_the_span_says_where_the_weights_changed(
    tied_model: Path, other_tied_model: Path, tmp_path: Path, prepare: bool
) -> None:
    plain, updated = await streams_with_an_update(
        tied_model, other_tied_model, tmp_path, "false", prepare=prepare
    )
    assert len(updated) == 8
    exact = 0
    for one, other in zip(plain, updated, strict=True):
        assert one.versions == [(0, 0, 150)]
        middle = boundary(other)
        differs = np.flatnonzero(one.token_ids != other.token_ids)
        assert differs.size and differs[0] >= middle
        exact += int(differs[0] == middle)
    # Two models can agree on one token by chance; they do not on several streams.
    assert exact >= 6


async def test_keep_is_old_keys_and_values_under_new_weights(
    tied_model: Path, other_tied_model: Path, tmp_path: Path
) -> None:
    _, updated = await streams_with_an_update(tied_model, other_tied_model, tmp_path, "false")
    old, new = reference(tied_model), reference(other_tied_model)
    for one in updated:
        ids = torch.tensor(np.concatenate([one.prompt_ids, one.token_ids])[None].astype(np.int64))
        # The last token sampled before the update enters the cache with the step after it.
        cut = len(one.prompt_ids) + boundary(one) - 1
        with torch.no_grad():
            cache = old(ids[:, :cut], use_cache=True).past_key_values
            logprobs = new(ids[:, cut:-1], past_key_values=cache).logits[0].log_softmax(-1)
        expected = logprobs.gather(1, ids[0, cut + 1 :, None])[:, 0].numpy()
        np.testing.assert_allclose(one.logprobs[boundary(one) :], expected, atol=1e-4)


async def test_recompute_is_the_full_forward_of_the_new_weights(
    tied_model: Path, other_tied_model: Path, tmp_path: Path
) -> None:
    _, updated = await streams_with_an_update(tied_model, other_tied_model, tmp_path, "true")
    old, new = reference(tied_model), reference(other_tied_model)
    for one in updated:
        ids = np.concatenate([one.prompt_ids, one.token_ids])
        first, middle = len(one.prompt_ids) - 1, boundary(one)
        np.testing.assert_allclose(
            one.logprobs[:middle], full_logprobs(old, ids)[first : first + middle], atol=1e-4
        )
        np.testing.assert_allclose(
            one.logprobs[middle:], full_logprobs(new, ids)[first + middle :], atol=1e-4
        )


@pytest.mark.parametrize("kind", ["tied", "untied"])
async def test_parity_after_one_and_ten_updates(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder: Path = request.getfixturevalue(f"{kind}_model")
    other: Path = request.getfixturevalue(f"other_{kind}_model")
    models = [reference(folder), reference(other)]
    prompt = random_prompt(100)
    async with running_engine(folder) as engine:
        publisher = Publisher([engine.url], FileTransport(tmp_path))
        await asyncio.to_thread(publisher.wait_ready, 30.0)
        for version in range(1, 11):
            model = models[version % 2]
            report = await asyncio.to_thread(publisher.publish, version, list(model.named_parameters()))
            assert report.bytes > 0 and report.paused_s[engine.url] > 0
            if version in (1, 10):
                scores = await engine.client.prompt_logprobs(prompt)
                np.testing.assert_allclose(scores, full_logprobs(model, prompt), atol=2e-5)
        assert await engine.client.weight_version() == 10
        assert engine.server.engine.metrics.update_counts["prepare"] == 10
        publisher.close()


async def test_calls_out_of_order_are_refused_and_generation_goes_on(
    tied_model: Path, tmp_path: Path
) -> None:
    transport = FileTransport(tmp_path)
    model = reference(tied_model)
    async with running_engine(tied_model) as engine:
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/start_weight_update", expect=409)  # no transport yet
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        await engine.post("/resume")
        await engine.post("/start_weight_update", expect=409)  # not paused
        info = {"update_info": transport.stage(3, model.named_parameters()).info}
        await engine.post("/update_weights", info, expect=409)
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/pause?mode=keep&clear_cache=false")  # idempotent
        await engine.post("/start_weight_update")
        await engine.post("/start_weight_update", expect=409)
        await engine.post("/resume", expect=409)
        await engine.post("/finish_weight_update", {"weight_version": "3"}, expect=409)  # nothing loaded
        await engine.post("/update_weights", info)
        await engine.post("/update_weights", info, expect=409)
        await engine.post("/finish_weight_update", {"weight_version": "4"}, expect=409)
        await engine.post("/finish_weight_update", {"weight_version": "3"})
        assert (await engine.get("/is_paused"))["is_paused"]
        await engine.post("/resume")
        await engine.post("/resume")
        one = await engine.client.generate(random_prompt(5), SamplingParams(max_tokens=3, ignore_eos=True))
        assert one.versions == [(3, 0, 3)]
        # Versions only grow.
        older = {"update_info": transport.stage(2, model.named_parameters()).info}
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/start_weight_update")
        await engine.post("/update_weights", older, expect=409)


async def test_label_checksums_and_the_end_of_the_transport(
    tied_model: Path, other_tied_model: Path, tmp_path: Path
) -> None:
    transport = FileTransport(tmp_path)
    new = reference(other_tied_model)
    async with running_engine(tied_model) as engine, running_engine(other_tied_model) as other:
        assert await engine.get("/weight_info") == {"weight_version": "default", "state": "serving"}
        expected = (await other.post("/weight_checker"))["checksums"]
        before = (await engine.post("/weight_checker"))["checksums"]
        assert before.keys() == expected.keys() and before != expected
        await update(engine, transport, new, 4, "false")
        assert await engine.post("/weight_checker") == {"weight_version": "4", "checksums": expected}
        await engine.post("/update_weight_version", {"weight_version": "3"}, expect=409)
        await engine.post("/update_weight_version", {"weight_version": "6"})
        one = await engine.client.generate(random_prompt(5), SamplingParams(max_tokens=3, ignore_eos=True))
        assert one.versions == [(6, 0, 3)]
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/start_weight_update")
        for path, body in (
            ("/update_weight_version", {"weight_version": "7"}),
            ("/shutdown_weight_transfer_engine", None),
            ("/init_weight_transfer_engine", {"init_info": {}}),
        ):
            await engine.post(path, body, expect=409)
        info = transport.stage(7, new.named_parameters()).info
        await engine.post("/update_weights", {"update_info": info})
        await engine.post("/finish_weight_update", {"weight_version": "7"})
        await engine.post("/shutdown_weight_transfer_engine")
        await engine.post("/start_weight_update", expect=409)  # no transport any more
        await engine.post("/resume")
        assert await engine.get("/weight_info") == {"weight_version": "7", "state": "serving"}


@pytest.mark.parametrize("kind", ["tied", "untied"])
async def test_a_prompt_asked_again_after_an_update_is_answered_as_by_a_fresh_engine(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder: Path = request.getfixturevalue(f"{kind}_model")
    other: Path = request.getfixturevalue(f"other_{kind}_model")
    prompt, short = random_prompt(80), SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    async with running_engine(folder) as engine, running_engine(other) as fresh:
        old = await engine.client.generate(prompt, short)
        await update(engine, FileTransport(tmp_path), reference(other), 1, "false")
        assert (await engine.post("/reset_prefix_cache"))["success"] is True
        again = await engine.client.generate(prompt, short)
        expected = await fresh.client.generate(prompt, short)
    assert old.token_ids.tolist() != again.token_ids.tolist() == expected.token_ids.tolist()
    np.testing.assert_allclose(again.logprobs, expected.logprobs, atol=2e-5)


async def test_a_damaged_file_is_refused_before_any_tensor_changes(
    tied_model: Path, other_tied_model: Path, untied_model: Path, tmp_path: Path
) -> None:
    transport = FileTransport(tmp_path)
    good = reference(other_tied_model)
    prompt = random_prompt(40)

    def staged(change: str) -> dict[str, Any]:
        tensors = dict(good.named_parameters())
        if change == "names":
            tensors = dict(reference(untied_model).named_parameters())
        elif change == "shape":
            tensors["model.norm.weight"] = torch.ones(3)
        info = transport.stage(1, tensors.items()).info
        path = Path(info["path"])
        data = bytearray(path.read_bytes())
        if change == "truncated":
            data = data[:-100]
        elif change == "altered":
            data[-50] ^= 1
        elif change == "not safetensors":
            data = bytearray(b"x" * len(data))
            info["checksum"] = checksum(bytes(data))
        elif change == "missing":
            path.unlink()
            return info
        path.write_bytes(data)
        return info

    async with running_engine(tied_model) as engine:
        await update(engine, transport, reference(tied_model), 0, "false")
        expected = await engine.client.prompt_logprobs(prompt)
        for change in ("truncated", "altered", "not safetensors", "missing", "names", "shape"):
            await engine.post("/pause?mode=keep&clear_cache=false")
            await engine.post("/start_weight_update")
            await engine.post("/update_weights", {"update_info": staged(change)}, expect=400)
            await engine.post("/start_weight_update", expect=409)  # not after a failure
            await engine.post("/finish_weight_update", {"weight_version": "1"}, expect=409)
            await engine.post("/resume")
            np.testing.assert_array_equal(await engine.client.prompt_logprobs(prompt), expected)
        assert await engine.client.weight_version() == 0
        await update(engine, transport, good, 1, "false")
        np.testing.assert_allclose(
            await engine.client.prompt_logprobs(prompt), full_logprobs(good, prompt), atol=2e-5
        )


async def test_pause_modes(tied_model: Path) -> None:
    long = SamplingParams(max_tokens=300, ignore_eos=True)
    async with running_engine(tied_model) as engine:
        await engine.post("/pause?mode=sometimes", expect=400)
        await engine.post("/pause?mode=keep&clear=1", expect=400)
        running = asyncio.ensure_future(
            engine.post(
                "/inference/v1/generate",
                {"token_ids": [1], "sampling_params": {"max_tokens": 500, "ignore_eos": True, "logprobs": 0}},
            )
        )
        await wait_for_tokens(engine, 5)
        await engine.post("/pause")  # mode abort
        (choice,) = (await running)["choices"]
        assert choice["finish_reason"] == "abort" and 0 < len(choice["token_ids"]) < 500
        queued = asyncio.ensure_future(engine.client.generate([1, 2], long))
        await asyncio.sleep(0.05)
        assert not queued.done()
        await engine.post("/resume")
        assert len((await queued).token_ids) == 300
        draining = asyncio.ensure_future(engine.client.generate([1, 2], long))
        await wait_for_tokens(engine, engine.server.engine.metrics.generation_tokens + 5)
        await engine.post("/pause?mode=wait")
        async with asyncio.timeout(10):
            assert len((await draining).token_ids) == 300
        assert (await engine.get("/is_paused"))["is_paused"]
