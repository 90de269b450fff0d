"""What is sharded and how versions are received is printed, and every role is told the same."""

import json
from pathlib import Path

import pytest

from pipelinerl.base import hub
from pipelinerl.config.finetune import Sharding
from pipelinerl.engines.kind import eight_bits
from pipelinerl.engines.vllm.options import SHARED_PROMPTS
from pipelinerl.launcher.commands import commands
from pipelinerl.weights.transports.base import adapters_alone, weights_ahead
from tests.support.one_host import one_host
from tests.support.one_line import check_one_line
from tests.support.tiny_model import hub_snapshot
from tests.unit.launcher.conftest import ON_GPUS, QWEN_1_7B, ROOT, DryRun, Placed, Refused

TENSOR_PARALLEL = "vllm_config.vllm_kwargs.tensor-parallel-size=2"


@pytest.mark.parametrize(
    ("overrides", "sharding", "printed"),
    [
        ((), None, "nothing sharded"),
        (("use_fsdp=true",), Sharding(), "all sharded"),
        (
            ("use_deepspeed=true", "deepspeed_config=deepspeed_stage2_bf16", "fsdp.reduce_dtype=bf16"),
            Sharding(keep_gathered=True, reduce_bfloat16=True),
            "deepspeed_config=deepspeed_stage2_bf16",
        ),
        (("use_deepspeed=true", "deepspeed_config=deepspeed_stage1_bf16"), None, "nothing sharded"),
        (("fsdp.cpu_offload=true",), Sharding(offload=True), "fsdp.cpu_offload=true"),
    ],
)
def test_sharding_as_configured(
    placed: Placed, overrides: tuple[str, ...], sharding: Sharding | None, printed: str
) -> None:
    cfg, out = placed(*ON_GPUS, "hardware.devices=8", *overrides)
    assert printed in out and cfg.sharding == sharding


@pytest.mark.parametrize(
    ("overrides", "backend"),
    [
        ((), "nccl_ahead"),
        (("weights.ahead=false",), "nccl"),
        ((TENSOR_PARALLEL,), "nccl"),
        ((TENSOR_PARALLEL, "weights.transport=file"), "file_ahead"),
    ],
)
def test_back_end_and_order_of_the_steps_agree(
    placed: Placed, tmp_path: Path, overrides: tuple[str, ...], backend: str
) -> None:
    cfg, out = placed(*ON_GPUS, "hardware.devices=4", *overrides)
    command = (tmp_path / "run/actor_vllm_0/start.sh").read_text()
    assert f'{{"backend": "{backend}"}}' in command
    assert weights_ahead(cfg) is backend.endswith("_ahead") is ("received ahead" in out)


ADAPTERS = "finetune.lora.enabled=true"
IN_PAUSE = "over NCCL, whole weights alone are received in the pause (weights.transport=file: both)"


def test_vllm_is_sent_merged_adapters_unless_they_are_asked_to_travel_alone(placed: Placed) -> None:
    gpus = (*ON_GPUS, "hardware.devices=2", ADAPTERS)
    cfg, out = placed(*gpus)
    figures = json.loads((ROOT / "benchmarks/results/vllm_adapters.json").read_text())["figures"]
    alone, merged = (figures[f"paused: {way}, 256 in flight"] for way in ("adapters alone", "merged"))
    assert alone["value"] >= merged["value"], "the reason below says what was measured"
    assert "sent merged" in out and "gained nothing" in out and not adapters_alone(cfg)
    for transport in ("nccl", "file"):
        cfg, out = placed(*gpus, "weights.lora=adapter", f"weights.transport={transport}")
        assert "sent alone" in out and adapters_alone(cfg)
    placed(*gpus, "weights.lora=adapter", "weights.transport=file", "weights.ahead=false")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("weights.ahead=false",), IN_PAUSE),
        ((TENSOR_PARALLEL,), IN_PAUSE),
        (
            ("+vllm_config.vllm_kwargs.quantization=fp8",),
            "weights of vllm_config.vllm_kwargs.quantization=fp8",
        ),
        (("vllm_config.vllm_kwargs.pipeline-parallel-size=2",), "stages of pipeline parallelism take whole"),
    ],
)
def test_vllm_that_takes_whole_weights_says_so(
    placed: Placed, refused: Refused, given: tuple[str, ...], said: str
) -> None:
    gpus = (*ON_GPUS, "hardware.devices=4", ADAPTERS, *given)
    line = refused(*gpus, "weights.lora=adapter")
    assert f"weights.lora=adapter: {said}" in line and "; set weights.lora=merged" in line
    assert "sent merged" in placed(*gpus)[1]


def test_adapters_go_alone_to_vllm_on_several_cards_through_files(placed: Placed) -> None:
    keys = (ADAPTERS, "weights.lora=adapter", TENSOR_PARALLEL, "weights.transport=file")
    assert "sent alone" in placed(*ON_GPUS, "hardware.devices=4", *keys)[1]


def test_shards_go_merged_to_an_embedded_engine(placed: Placed, refused: Refused) -> None:
    beside = (*ON_GPUS[:3], "hardware.devices=3", "engine.kind=embedded", "weights.transport=file", ADAPTERS)
    assert "sent merged" in placed(*beside, "use_fsdp=true")[1]
    assert "sent alone" in placed(*beside, "use_fsdp=false")[1]
    said = refused(*beside, "use_fsdp=true", "weights.lora=adapter")
    assert "weights.lora=adapter: shards are put together as whole weights; set weights.lora=merged" in said


def test_receiving_ahead_where_it_cannot_be_is_refused(refused: Refused) -> None:
    said = refused(*ON_GPUS, TENSOR_PARALLEL, "weights.ahead=true")
    assert "weights.ahead=true: has no effect here: nothing is received ahead over NCCL into" in said


@pytest.mark.parametrize("preset", [(), ("+preset=reputation_hacking_pretrained",)], ids=["base", "preset"])
def test_a_context_is_made_to_fit_the_model_by_the_keys_that_are_named(
    dry_run: DryRun, model: Path, preset: tuple[str, ...]
) -> None:
    """The engine's own key follows vLLM's, unless a preset writes both."""
    (model / "config.json").write_text('{"max_position_embeddings": 128, "vocab_size": 100}')
    domain = "+domain=reputation_hacking" if preset else "+domain=guessing"
    lengths = [f"{group}.parameters.max_tokens=64" for group in ("llm", "test_llm")]
    given = [domain, *ON_GPUS[:1], *ON_GPUS[3:], "hardware.devices=2", *lengths, *preset]

    def refusal(*keys: str) -> str:
        status, _, err = dry_run(*given, *keys)
        assert status == 2
        for line in err.splitlines():
            check_one_line(line, "launcher: ")
        return err

    named = "vllm_config.vllm_kwargs.max_model_len=128"
    assert f"the model has 128 positions; set {named} or lower" in refusal()
    both = (named, "engine.max_model_len=128")
    if preset:
        assert "engine.max_model_len=256: the model has 128 positions; set engine" in refusal(named)
    said = refusal(both[0 if preset else 1])
    assert "vllm_config.vllm_kwargs.max_model_len says " in said and "give both the same value" in said
    for keys in [both] if preset else [both, both[:1]]:
        status, _, err = dry_run(*given, *keys, "force_restart=true")
        assert (status, err) == (0, "")


def test_rows_over_several_ranks_make_fewer_partitions(placed: Placed) -> None:
    given = ("world.actor_fraction=4", "world.finetune_fraction=4", "finetune.seq_parallel=2")
    cfg, out = placed(*ON_GPUS, "hardware.devices=8", *given, "finetune.gradient_accumulation_passes=7")
    assert (cfg.derived.trainer_ranks, cfg.rows_at_once, cfg.derived.texts_per_step) == (4, 2, 8)
    assert "nothing sharded, each row over │" in out and "known; finetune.seq_parallel=2 │" in out


@pytest.mark.parametrize(
    ("sharding", "key"),
    [
        (("use_fsdp=true",), "use_fsdp"),
        (("use_deepspeed=true", "deepspeed_config=deepspeed_stage2_bf16"), "use_deepspeed"),
        (("use_deepspeed=true",), "use_deepspeed"),
        (("fsdp.cpu_offload=true",), "fsdp.cpu_offload"),
    ],
)
def test_an_optimizer_that_takes_no_shards_is_refused(
    refused: Refused, sharding: tuple[str, ...], key: str
) -> None:
    devices = 2 if key == "fsdp.cpu_offload" else 8  # a lone rank has shards in host memory as well
    said = refused(*ON_GPUS, f"hardware.devices={devices}", "finetune.optim=adafactor", *sharding)
    assert f"set finetune.optim=adamw_torch or lion or {key}=false" in said


@pytest.mark.parametrize(
    ("devices", "overrides"),
    [
        (8, ("finetune.optim=adafactor",)),
        (8, ("finetune.optim=adafactor", "use_deepspeed=true", "deepspeed_config=deepspeed_stage1_bf16")),
        (2, ("finetune.optim=adafactor", "use_fsdp=true")),
        (8, ("finetune.optim=lion", "use_fsdp=true")),
    ],
)
def test_without_shards_every_optimizer_is_allowed(
    placed: Placed, devices: int, overrides: tuple[str, ...]
) -> None:
    cfg, _ = placed(*ON_GPUS, f"hardware.devices={devices}", *overrides)
    assert cfg.derived.trainer_ranks == 1 if devices == 2 else cfg.derived.trainer_ranks > 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("world.actor_fraction=0",), "world.actor_fraction=0: leaves no GPU for engines; set at least 1"),
        (("debug.mode=actor", "max_lag=null", "world.actor_fraction=0"), "leaves no GPU for engines"),
        *(
            (
                (f"vllm_config.vllm_kwargs.{kind}-parallel-size={size}",),
                f"{kind}-parallel-size={shown}: not a whole",
            )
            for kind, size, shown in (
                ("tensor", "-1", "-1"),
                ("tensor", "0", "0"),
                ("tensor", "2.5", "2.5"),
                ("tensor", "true", "True"),
                ("tensor", "abc", "abc"),
                ("tensor", "''", ""),
                ("pipeline", "-2", "-2"),
            )
        ),
        (("+vllm_config.vllm_kwargs.data-parallel-size=x",), "data-parallel-size=x: not a whole number"),
        (
            ("hardware.devices=1", "world.share_device=true", TENSOR_PARALLEL),
            "an engine of 2 GPUs (tensor x pipeline x data) does not fit on one GPU",
        ),
        (
            ("finetune.seq_parallel=3", "world.actor_fraction=4", "world.finetune_fraction=4"),
            "finetune.seq_parallel=3: does not divide the 4 trainer ranks; set world.finetune_fraction to a",
        ),
        (
            ("finetune.gradient_checkpointing=offload", "finetune.reentrant_checkpointing=true"),
            "gradient_checkpointing=offload: needs finetune.reentrant_checkpointing=false",
        ),
        (
            ("+vllm_config.vllm_kwargs.model=other/model",),
            "vllm_config.vllm_kwargs.model: decided by the launcher; remove it",
        ),
        (("vllm_config.vllm_kwargs.logprobs-mode=null",), "logprobs-mode=null: training needs"),
        (
            ("vllm_config.vllm_kwargs.logprobs-mode=raw_logprobs",),
            "mode=raw_logprobs: training needs",
        ),
        (("vllm_config.vllm_kwargs.generation-config=null",), "generation-config=null: a checkpoint's file"),
        (("vllm_config.vllm_kwargs.generation-config=auto",), "generation-config=auto: a checkpoint's file"),
        (
            ("+vllm_config.vllm_kwargs.override-generation-config={top_k: 5}",),
            "override-generation-config: it would add to the run's sampling parameters; set llm.parameters",
        ),
    ],
)
def test_a_plan_that_cannot_run_is_refused(
    refused: Refused, overrides: tuple[str, ...], message: str
) -> None:
    assert message in refused(*ON_GPUS, "hardware.devices=8", *overrides)


def test_a_size_may_be_left_out_or_written_as_text(placed: Placed) -> None:
    for size, engines in (("null", 2), ("'2'", 1)):
        overrides = ("hardware.devices=4", f"vllm_config.vllm_kwargs.tensor-parallel-size={size}")
        cfg, _ = placed(*ON_GPUS, *overrides)
        assert len(cfg.jobs_of("actor_llm")) == engines


CACHE = "+vllm_config.vllm_kwargs.kv-cache-dtype"


def test_a_cache_in_eight_bits_is_planned_with_and_compared_as_such(
    model: Path, placed: Placed, refused: Refused
) -> None:
    (model / "config.json").write_text(json.dumps(QWEN_1_7B | {"max_position_embeddings": 16384}))
    plain, _ = placed(*ON_GPUS, "hardware.devices=2xH100-80GB")
    small, _ = placed(*ON_GPUS, "hardware.devices=2xH100-80GB", f"{CACHE}=fp8_e5m2")
    assert (eight_bits(plain), eight_bits(small)) == (None, "float8_e5m2")
    half, whole = small.derived.engine_reads, plain.derived.engine_reads
    assert half is not None and whole is not None and half.token == whole.token / 2
    said = refused(*ON_GPUS, "hardware.devices=2", f"{CACHE}=int4")
    assert f"{CACHE[1:]}=int4: " in said and "set auto, bfloat16, float32, fp8, fp8_e4m3 or fp8_e5m2" in said


def test_the_front_end_that_takes_no_middleware_is_refused(refused: Refused) -> None:
    said = refused(*ON_GPUS, "hardware.devices=2", "vllm_config.frontend=rust")
    assert "vllm_config.frontend=rust: it takes no middleware" in said and "leave python" in said


SHARED = "vllm_config.shared_prompts=true"


def test_shared_prompts_are_a_back_end_of_the_engine(
    placed: Placed, refused: Refused, tmp_path: Path
) -> None:
    placed(*ON_GPUS, "hardware.devices=2")
    script = tmp_path / "run/actor_vllm_0/start.sh"
    assert "--attention-backend" not in script.read_text() and SHARED_PROMPTS not in script.read_text()
    placed(*ON_GPUS, "hardware.devices=2", SHARED)
    assert "--attention-backend CUSTOM" in script.read_text()
    assert f"export {SHARED_PROMPTS}=1" in script.read_text()
    said = refused(
        *ON_GPUS, "hardware.devices=2", SHARED, "+vllm_config.vllm_kwargs.attention-backend=FLASHINFER"
    )
    assert "is an attention back-end itself; set false or remove attention-backend=FLASHINFER" in said
    said = refused(
        *ON_GPUS, "hardware.devices=2", SHARED, "vllm_config.vllm_kwargs.enable-prefix-caching=false"
    )
    assert "requests share blocks through the prefix cache" in said
    drafts = "+vllm_config.vllm_kwargs.speculative-config={method: ngram, num_speculative_tokens: 4}"
    said = refused(*ON_GPUS, "hardware.devices=2", SHARED, drafts)
    assert "drafted tokens read no prompt once; set false or remove speculative-config" in said


def test_a_hub_that_is_silent_is_not_asked_for_what_is_in_the_cache(
    placed: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", "somebody/small")
    (snapshot / "config.json").write_text(json.dumps(QWEN_1_7B))
    cfg, _ = placed(*ON_GPUS, "hardware.devices=2", "model_path=somebody/small")

    def alone(model: str, dry_run: bool = False) -> set[bool]:
        run = cfg.model_copy(update={"model_path": model})
        made = commands(run, tmp_path, [], one_host(), None, dry_run)
        return {"HF_HUB_OFFLINE" in child.env for child in made if child.name in ("finetune", "actor_vllm_0")}

    assert (alone("somebody/small"), alone("somebody/other"), alone(str(tmp_path))) == (
        {True},
        {False},
        {True},
    )
    assert alone("somebody/small", dry_run=True) == {False}, "it may be for another machine"
    monkeypatch.setattr(hub, "silence", lambda: None)
    assert alone("somebody/small") == {False}


def test_a_domain_may_ask_the_hub_beside_a_model_in_a_folder(placed: Placed, tmp_path: Path) -> None:
    """The actor calls a loader that fetches its data in the user's environment, as before the start."""
    cfg, _ = placed("hardware=cpu")
    made = commands(cfg, tmp_path, [], one_host(), None, False)
    alone = {child.name: "HF_HUB_OFFLINE" in child.env for child in made}
    assert alone["finetune"] and alone["preprocess"] and alone["actor_vllm_0"] and not alone["actor"]


def test_a_hub_s_model_is_checked_by_the_file_in_the_local_cache(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = hub_snapshot(monkeypatch, tmp_path, "somebody/short")
    (snapshot / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 128}')
    said = refused(*ON_GPUS, "hardware.devices=2", "model_path=somebody/short")
    assert "the model has 128 positions; set vllm_config.vllm_kwargs.max_model_len=128 or lower" in said
