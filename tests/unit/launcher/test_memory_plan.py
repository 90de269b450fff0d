"""What fits on which cards: a table of models and cards, what is chosen and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.compose import compose
from pipelinerl.config.finetune import Checkpointing, Sharding
from pipelinerl.config.tree import Config
from pipelinerl.launcher.cards import GIB, Card, imagined_cards
from pipelinerl.launcher.decoder_shape import DecoderShape, decoder_shape
from pipelinerl.launcher.engine_memory import UNCOUNTED
from pipelinerl.launcher.memory_choice import Chosen, choose_memory, smallest_changes
from pipelinerl.launcher.memory_plan import memory_plan
from pipelinerl.launcher.memory_values import Asked, DoesNotFit, MemoryPlan
from pipelinerl.launcher.trainer_memory import needed_bytes, state_bytes
from tests.support.one_host import one_host
from tests.unit.launcher.conftest import ON_GPUS, ROOT, DryRun, Placed, Refused
from tests.unit.launcher.hub_configs import HUB

# layers, hidden, mlp, heads, key heads, head size, vocabulary, tied, billions of parameters as published
MODELS: dict[str, tuple[int, int, int, int, int, int, int, bool, float]] = {
    "0.5B": (24, 896, 4864, 14, 2, 64, 151936, True, 0.49),
    "1.5B": (28, 1536, 8960, 12, 2, 128, 151936, True, 1.54),
    "3B": (36, 2048, 11008, 16, 2, 128, 151936, True, 3.09),
    "4B": (36, 2560, 9728, 32, 8, 128, 151936, True, 4.02),
    "7B": (28, 3584, 18944, 28, 4, 128, 152064, False, 7.62),
    "8B": (36, 4096, 12288, 32, 8, 128, 151936, False, 8.19),
    "14B": (40, 5120, 17408, 40, 8, 128, 151936, False, 14.77),
    "32B": (64, 5120, 25600, 64, 8, 128, 151936, False, 32.76),
    "30B-A3B": (48, 2048, 6144, 32, 4, 128, 151936, False, 30.53),
}
AS_PUBLISHED = {"Qwen3.5-4B": "Qwen/Qwen3.5-4B", "Gemma-3-4B": "google/gemma-3-4b-it"}
"""Models that also see: a configuration in parts, of which the decoder's is one."""
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
# Smallest number of cards, of 1, 2, 4 and 8, on which each model trains with every key at its default; one
# card with world.share_device=true. 0: on none of them.
SMALLEST = {
    "0.5B": {24: 1, 48: 1, 80: 1, 141: 1},
    "1.5B": {24: 4, 48: 1, 80: 1, 141: 1},
    "3B": {24: 8, 48: 4, 80: 1, 141: 1},
    "4B": {24: 8, 48: 4, 80: 2, 141: 1},
    "7B": {24: 0, 48: 8, 80: 4, 141: 4},
    "8B": {24: 0, 48: 8, 80: 4, 141: 4},
    "14B": {24: 0, 48: 0, 80: 8, 141: 4},
    "32B": {24: 0, 48: 0, 80: 0, 141: 8},
    "30B-A3B": {24: 0, 48: 0, 80: 0, 141: 8},
    "Qwen3.5-4B": {24: 0, 48: 4, 80: 4, 141: 1},
    "Gemma-3-4B": {24: 8, 48: 4, 80: 2, 141: 1},
}
CELLS = [(model, gb, count) for model in SMALLEST for gb in (24, 48, 80, 141) for count in (1, 2, 4, 8)]


def described(model: str) -> dict[str, Any]:
    if model in AS_PUBLISHED:
        return HUB[AS_PUBLISHED[model]]
    layers, hidden, mlp, heads, keys, head, vocabulary, tied, _ = MODELS[model]
    sizes: dict[str, Any] = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": mlp}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": head}
    sizes |= {"vocab_size": vocabulary, "tie_word_embeddings": tied}
    return sizes | (EXPERTS if model == "30B-A3B" else {})


def shape(model: str) -> DecoderShape:
    found = decoder_shape(described(model))
    assert found is not None
    return found


def card(gb: int) -> Card:
    found = imagined_cards(f"1xH100-{gb}GB")
    assert found is not None
    return found[1]


def configured(**changes: Any) -> Config:
    world = {"share_device": True} | changes.pop("world", {})
    return Config.model_validate({"world": world, "engine": {"max_model_len": 10000}} | changes)


def planned(model: str, gb: int, count: int, **changes: Any) -> MemoryPlan:
    files = (
        {"weights": {"transport": "file"}} if count == 1 else {}
    )  # as the launcher sets it for a shared card
    return memory_plan(configured(**files | changes), shape(model), [card(gb)] * count, Asked(1024))


@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_those_that_are_published(model: str) -> None:
    assert shape(model).parameters / 1e9 == pytest.approx(MODELS[model][-1], rel=0.02)


@pytest.mark.parametrize(("model", "gb", "count"), CELLS)
def test_each_cell_is_a_plan_that_adds_up_or_a_refusal(model: str, gb: int, count: int) -> None:
    try:
        plan = planned(model, gb, count)
    except DoesNotFit as error:
        assert not SMALLEST[model][gb] or count < SMALLEST[model][gb]
        assert len(error.problems) == 1 and re.search(r"needs? \d+ GiB|\(\d+ GiB\)", error.problems[0])
        return
    assert 0 < SMALLEST[model][gb] <= count
    assert plan.engine is not None and plan.trainer is not None
    total = card(gb).total
    engine, trainer = sum(plan.engine.parts.values()), sum(plan.trainer.parts.values())
    if plan.shared:
        assert count == 1 and engine + trainer <= total
    else:
        assert plan.engines * plan.engine.cards + plan.trainer.ranks == count
        assert engine <= total and trainer <= 0.95 * total
    size = shape(model).parameters
    # Two bytes of each weight for the engine, over its cards, and twice that while a version is received.
    one = shape(model)
    assert plan.engine.parts["weights"] * plan.engine.cards == pytest.approx(2 * (size + one.vision))
    own_copy = plan.engine.ahead and not plan.shared
    travels = 2 * (size + one.frozen) / plan.engine.cards
    assert plan.engine.parts["second copy"] == pytest.approx(travels if own_copy else 0)
    assert plan.engine.parts["keys and values"] > 0 and plan.engine.requests >= 1
    # Master, gradient and two moments in float32, over the ranks if they are sharded, and the bfloat16 copy.
    ranks = plan.trainer.ranks if plan.trainer.sharding else 1
    assert plan.trainer.parts["weights, gradients, optimizer"] >= 16 * size / ranks + 2 * size * (ranks == 1)


def test_what_the_first_runs_at_these_sizes_showed() -> None:
    """8B on four cards of 80 GB needs three sharded ranks; on larger ones engines and trainer keep pace.

    Three ranks are faster on four H200s as well (`gpu_sizes.json`, `gpu_sizes_two_engines.json`).
    """
    work = {"engine": {"max_model_len": 2112}, "max_lag": 384}
    found = imagined_cards("4xH200-141GB")
    assert found is not None
    fast = memory_plan(configured(**work), shape("8B"), [found[1]] * 4, Asked(384))
    assert fast.trainer is not None and (fast.engines, fast.trainer.ranks) == (1, 3)
    eight = planned("8B", 80, 4)
    assert eight.engine is not None and eight.trainer is not None
    assert (eight.engines, eight.engine.cards, eight.trainer.ranks) == (1, 1, 3)
    assert eight.engine.ahead and 0.70 <= eight.engine.share <= 0.80
    assert eight.trainer.sharding is not None
    small = planned("1.5B", 141, 4, engine={"max_model_len": 1088})
    assert small.trainer is not None and small.trainer.sharding is None and small.engines == 2


def test_an_engine_without_room_for_a_second_copy_takes_versions_within_the_pause() -> None:
    tight = {"vllm_config": {"vllm_kwargs": {"gpu-memory-utilization": 0.9}}}
    plan = planned("8B", 80, 4, **tight)
    assert plan.engine is not None and not plan.engine.ahead and plan.engine.share == 0.9
    with pytest.raises(DoesNotFit, match=r"second copy 15.*80 GiB are free \(gpu-memory-utilization=0\.9\)"):
        planned("8B", 80, 4, weights={"ahead": True}, **tight)


def test_an_engine_is_divided_where_one_card_cannot_hold_it() -> None:
    plan = planned(
        "32B",
        48,
        8,
        finetune={"lora": {"enabled": True}, "seq_length": 10240},
        use_fsdp=False,
        debug={"mode": "actor", "place_inference_workers": True},
    )
    assert plan.engine is not None and plan.engine.cards == 2 and not plan.engine.ahead


@pytest.mark.parametrize(
    ("model", "gb", "count", "first"),
    [
        ("3B", 48, 2, "finetune.optim=adamw_8bit (with the extra `torchao`)"),
        ("8B", 80, 2, "hardware.devices=4 (more cards)"),
        ("8B", 80, 1, "world.share_device=false hardware.devices=4 (more cards)"),
    ],
)
def test_the_smallest_change_comes_first_and_fits(
    model: str, gb: int, count: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelinerl.launcher.memory_choice.find_spec", lambda package: None)
    cfg, cards = configured(), [card(gb)] * count
    assert next(smallest_changes(cfg, shape(model), cards, Asked(1024))) == first


@pytest.mark.parametrize(("rows", "count"), [((), 2), (("finetune.seq_length=20000",), 3)])
def test_the_number_of_cards_that_is_named_is_the_smallest_that_a_launch_takes(
    rows: tuple[str, ...], count: int, model: Path
) -> None:
    on_gpus = ["+domain=privacy_hopqa", "hardware=gpu", f"model_path={folder(model, '4B')}", *rows]
    one = [*on_gpus, "world.share_device=true"]

    def choose(words: list[str], cards: int) -> Chosen:
        return choose_memory(compose(words), one_host(cards), True, lambda device: card(80), lambda: None)

    with pytest.raises(DoesNotFit, match=rf"world\.share_device=false hardware\.devices={count} "):
        choose(one, 1)
    assert choose(on_gpus, count).memory is not None
    for fewer in range(2, count):
        with pytest.raises(DoesNotFit):
            choose(on_gpus, fewer)


def test_each_change_that_is_named_for_a_single_card_starts(
    model: Path, refused: Refused, dry_run: DryRun
) -> None:
    """One card that is not shared is refused otherwise, whatever the change."""
    folder(model, "8B")
    alone = "hardware=gpu", "hardware.devices=1xH100-80GB"
    named = refused(*alone).rpartition("; set ")[2].split(", or ")
    assert len(named) == 3
    for change in named:
        words = change.strip().removesuffix(" (more cards)").split()
        status, _, err = dry_run("+domain=guessing", *alone, *words)
        assert status == 0, (change, err)


def test_adapters_are_not_advised_where_reentrant_recomputation_refuses_them() -> None:
    cfg, cards = configured(finetune={"reentrant_checkpointing": True}), [card(80)] * 2
    named = list(smallest_changes(cfg, shape("8B"), cards, Asked(1024)))
    assert named == ["hardware.devices=4 (more cards)", "fsdp.cpu_offload=true"]


def test_adafactor_is_planned_and_advised_without_shards_which_it_cannot_train(
    model: Path, refused: Refused, dry_run: DryRun
) -> None:
    folder(model, "8B")
    words = "hardware=gpu", "finetune.optim=adafactor"
    change = refused(*words, "hardware.devices=4xH100-80GB").rpartition("; set ")[2].strip()
    assert change == "finetune.lora.enabled=true"
    assert dry_run("+domain=guessing", *words, "hardware.devices=4xH100-80GB", change)[0] == 0
    status, out, err = dry_run("+domain=guessing", *words, "hardware.devices=4xH200-141GB")
    assert status == 0 and "all sharded" not in out, err


def folder(model: Path, name: str) -> Path:
    (model / "config.json").write_text(json.dumps(described(name) | {"max_position_embeddings": 32768}))
    return model


def chosen(model: Path, gb: int, devices: int, *overrides: str) -> Chosen:
    made = compose(["+domain=guessing", "hardware=gpu", f"model_path={model}", *overrides])
    return choose_memory(made, one_host(devices), True, lambda device: card(gb), lambda: None)


def test_what_is_open_is_written_with_its_reason_and_what_is_given_stays(model: Path) -> None:
    tree = chosen(folder(model, "8B"), 80, 4).tree
    kwargs = tree.vllm_config.vllm_kwargs
    assert (tree.world.actor_fraction, tree.world.finetune_fraction, tree.use_fsdp) == (1, 3, True)
    assert tree.weights.ahead is True and kwargs["tensor-parallel-size"] == 1
    given = (
        "world.actor_fraction=2",
        "world.finetune_fraction=2",
        "use_fsdp=false",
        "weights.ahead=false",
        "vllm_config.vllm_kwargs.gpu-memory-utilization=0.5",
    )
    made = chosen(folder(model, "0.5B"), 80, 4, *given)
    assert (made.tree.world.actor_fraction, made.tree.use_fsdp, made.tree.weights.ahead) == (2, False, False)
    assert made.tree.vllm_config.vllm_kwargs["gpu-memory-utilization"] == 0.5
    assert not {"use_fsdp", "weights.ahead", "world.actor_fraction"} & made.reasons.keys()


def test_rows_are_shortened_where_only_those_fit_unless_the_user_says_how_long_they_are(model: Path) -> None:
    lengths = ("vllm_config.vllm_kwargs.max_model_len=12288",)
    preset = compose(["+domain=guessing", "hardware=gpu", f"model_path={folder(model, '4B')}", *lengths])
    preset.tree.finetune.seq_length = 20000  # as a domain's file would
    found = choose_memory(preset, one_host(2), True, lambda device: card(80), lambda: None)
    rows = found.tree.finetune.seq_length
    assert 12288 <= rows < 20000 and found.reasons["finetune.seq_length"] == "rows of 20000 tokens do not fit"
    with pytest.raises(
        DoesNotFit,
        match=r"rows of 20000 tokens.*set finetune\.gradient_checkpointing=offload, or finetune\.op",
    ):
        chosen(model, 80, 2, *lengths, "finetune.seq_length=20000")


def test_a_row_over_several_ranks_takes_less_of_each_card() -> None:
    """What lies on a card of the row is that of a row of half the length, and ranks come in pairs."""
    long, half = ({"seq_length": length, "gradient_checkpointing": True} for length in (131072, 65536))
    plan = planned("1.5B", 80, 4, finetune=long | {"seq_parallel": 2})
    assert plan.trainer is not None and plan.trainer.ranks == 2
    alone = planned("1.5B", 80, 4, finetune=half, world={"actor_fraction": 2, "finetune_fraction": 2})
    assert alone.trainer is not None
    row = plan.trainer.parts["rows of 131072 tokens over 2"]
    assert row == alone.trainer.parts["rows of 65536 tokens"] > 0
    with pytest.raises(ConfigError, match="seq_parallel=3: does not divide the 4 trainer ranks; set world"):
        planned("1.5B", 80, 8, finetune={"seq_parallel": 3}, debug={"mode": "finetune"})
    with pytest.raises(ConfigError, match="seq_parallel=8: does not divide the model's 12 attention heads"):
        planned("1.5B", 80, 16, finetune={"seq_parallel": 8}, debug={"mode": "finetune"})
    with pytest.raises(DoesNotFit, match=r"leave none for an engine beside 2 cards of the trainer"):
        planned("1.5B", 80, 2, finetune={"seq_parallel": 2})


def test_a_row_that_is_too_long_may_lie_on_several_ranks_or_in_host_memory() -> None:
    debug = {"mode": "finetune", "place_inference_workers": False}
    cfg = configured(finetune={"seq_length": 300_000}, debug=debug, use_fsdp=True)
    with pytest.raises(DoesNotFit):
        memory_plan(cfg, shape("1.5B"), [card(80)] * 4, Asked(1024))
    found = list(smallest_changes(cfg, shape("1.5B"), [card(80)] * 4, Asked(1024)))
    assert "finetune.seq_parallel=2" in found and "finetune.seq_parallel=4" in found
    assert "finetune.seq_parallel=8" not in found  # of four ranks


def test_inputs_in_host_memory_are_not_on_the_card() -> None:
    """By hand: 16 bit of the width for each token and layer, less the two layers that are in flight."""
    sizes, tokens = shape("8B"), 32768
    difference = needed_bytes(sizes, True, True, tokens, 0.0) - needed_bytes(
        sizes, "offload", True, tokens, 0.0
    )
    assert difference == (36 - 2) * tokens * 2 * 4096


def test_layers_are_compiled_before_the_first_step_where_only_that_fits(model: Path) -> None:
    first = [
        plan.trainer.compiled_first
        for rows in (12000, 18432)
        if (plan := planned("4B", 80, 2, finetune={"seq_length": rows})).trainer is not None
    ]
    assert first == [False, True]
    with pytest.raises(DoesNotFit):
        planned("4B", 80, 2, finetune={"seq_length": 18432, "compile": False})


@pytest.mark.parametrize(
    "recomputed", [{"reentrant_checkpointing": True}, {"load_as_bf16": False}, {"use_flash_attention": False}]
)
def test_shards_save_no_recomputation_where_all_is_recomputed_anyway(recomputed: dict[str, bool]) -> None:
    """Two ranks of 4B each hold all of it, unless shards make room for what is kept otherwise."""
    long = {"finetune": {"seq_length": 20000}, "world": {"actor_fraction": 2, "finetune_fraction": 2}}
    sharded = planned("4B", 141, 4, **long).trainer
    assert sharded is not None and sharded.sharding is not None and sharded.recomputed is not True
    long["finetune"] |= recomputed
    whole = planned("4B", 141, 4, **long).trainer
    assert whole is not None and whole.sharding is None and whole.recomputed is True


def test_only_roles_that_run_are_planned_each_on_its_own_cards() -> None:
    alone = planned("4B", 80, 1, debug={"mode": "finetune"})
    assert alone.engine is None and alone.trainer is not None
    serving = {"mode": "preprocessor", "place_inference_workers": False}
    assert planned("8B", 80, 4, debug=serving).trainer is None
    occupied = Card(card(80).total, 8 * GIB, "H100-80GB")
    running = configured(debug={"use_existing_llms": True})
    plan = memory_plan(running, shape("4B"), [occupied, card(80)], Asked(1024))
    assert plan.engine is None and plan.trainer is not None


def test_what_is_given_is_planned_on_a_shared_card_too() -> None:
    with pytest.raises(DoesNotFit, match=r"trainer \(\d\d\d GiB\) and engine do not fit"):
        planned("4B", 141, 1, finetune={"gradient_checkpointing": False})
    offloaded = planned("8B", 141, 1, fsdp={"cpu_offload": True})
    assert offloaded.trainer is not None and offloaded.trainer.sharding is not None


def test_a_shared_card_recomputes_for_no_more_rollouts_than_were_asked_for() -> None:
    """By hand: a token is 28,672 bytes of keys and values, so that 64 rollouts of 5,000 hold 9 GB of a card
    on which a trainer without recomputation leaves some 18 GiB to the engine, and 400 hold 57 GB.
    """
    config, one = configured(weights={"transport": "file"}), [card(80)]
    few, many = (memory_plan(config, shape("1.5B"), one, Asked(1024, in_flight=n)) for n in (64, 400))
    assert few.engine is not None and few.trainer is not None and many.trainer is not None
    assert (few.engine.requests, few.trainer.recomputed, many.trainer.recomputed) == (64, False, True)


def test_the_division_is_that_of_the_placement_where_it_is_given(model: Path) -> None:
    given = ("world.actor_fraction=1", "world.preprocessor_fraction=1", "world.finetune_fraction=2")
    with pytest.raises(DoesNotFit, match="a trainer on 2 cards"):
        chosen(folder(model, "8B"), 80, 4, *given, "finetune.rl.kl_coef=0.1", "finetune.seq_length=12000")
    none = chosen(folder(model, "0.5B"), 80, 2, "world.finetune_fraction=0")
    assert none.tree.use_fsdp == "auto"  # left to the checks, which refuse the placement


def test_a_teacher_that_preprocess_holds_lies_on_the_trainers_card(tmp_path: Path) -> None:
    """By hand: float32 weights of the teacher's own sizes, and log-probabilities of a row twice."""
    teacher = folder(tmp_path, "3B")
    plan = planned("0.5B", 80, 2, teacher={"model_path": str(teacher), "by_role": {"critic": str(teacher)}})
    assert plan.trainer is not None
    assert plan.trainer.parts["teacher"] == pytest.approx(4 * 3.09e9 + 2.2e9, rel=0.02)
    elsewhere = planned("0.5B", 80, 2, teacher={"url": "http://elsewhere:8000"})
    assert elsewhere.trainer is not None and elsewhere.trainer.parts["reference"] == 0
    with pytest.raises(DoesNotFit):
        planned("4B", 80, 2, teacher={"model_path": str(folder(tmp_path, "32B"))})


def test_an_engine_is_divided_as_its_heads_can_be() -> None:
    odd = described("14B") | {"num_attention_heads": 30, "num_key_value_heads": 10}
    one = decoder_shape(odd)
    assert one is not None
    small = Card(16 * GIB, 16 * GIB, "T4")
    serving = configured(debug={"mode": "actor"}, engine={"max_model_len": 2048})
    with pytest.raises(DoesNotFit, match="an engine on 2 cards"):
        memory_plan(serving, one, [small] * 8, Asked(64))


@pytest.mark.parametrize("flag", ["max-num-batched-tokens=8k", "max-num-seqs=many"])
def test_flags_that_the_plan_computes_with_are_numbers(model: Path, flag: str) -> None:
    with pytest.raises(ConfigError, match="not a whole number; set one"):
        chosen(model, 80, 2, f"vllm_config.vllm_kwargs.{flag}")
    assert chosen(folder(model, "0.5B"), 80, 2, "vllm_config.vllm_kwargs.max-num-seqs='256'").tree


def test_a_model_of_unknown_sizes_gets_its_versions_within_the_pause(model: Path) -> None:
    made = chosen(model, 80, 2)
    assert (
        made.tree.weights.ahead is False
        and made.reasons["weights.ahead"] == "the model's sizes are not known"
    )


def test_imagined_cards_are_those_of_each_host_and_of_gpus_only(
    placed: Placed, dry_run: DryRun, model: Path
) -> None:
    folder(model, "8B")
    hosts = ("world.backend=ray", "world.hosts=2", "streams.password=x", "hardware.devices=4xH100-80GB")
    assert "bytes for trainer" in placed(*ON_GPUS, *hosts)[1]
    status, _, err = dry_run("+domain=guessing", "hardware=cpu", "hardware.devices=1xH100-24GB")
    assert status == 2 and "a CPU run uses no GPU" in err


def test_unknown_cards_and_models_get_the_usual_values(model: Path) -> None:
    made = compose(["+domain=guessing", "hardware=gpu", f"model_path={folder(model, '8B')}"])
    found = choose_memory(made, one_host(4), True, lambda device: None, lambda: None)
    assert found.memory is None
    kwargs = found.tree.vllm_config.vllm_kwargs
    assert (kwargs["gpu-memory-utilization"], kwargs["tensor-parallel-size"]) == (0.9, 1)
    assert found.tree.use_fsdp is False and found.tree.world.actor_fraction is None


def test_a_dry_run_without_the_model_s_sizes_asks_for_a_folder_not_for_cards_again(placed: Placed) -> None:
    _, out = placed(*ON_GPUS, "hardware.devices=4xH100-80GB", "model_path=someone/model")
    row = out.partition("bytes of GPUs")[2].partition("HTTP processes")[0]
    assert "not planned" in row and "the model's sizes cannot be read" in row
    assert "hf download someone/model config.json" in " ".join(row.replace("│", " ").split())
    assert "card's memory" not in row and "imagines" not in row


def refusal(dry_run: DryRun, *arguments: str) -> str:
    status, _, err = dry_run("+domain=guessing", *ON_GPUS, *arguments)
    assert status == 2 and err.count("\n") == 1
    return err


def test_the_dry_run_plans_imagined_cards_and_refuses_in_one_line(
    placed: Placed, dry_run: DryRun, model: Path
) -> None:
    folder(model, "8B")
    cfg, out = placed(*ON_GPUS, "hardware.devices=4xH100-80GB")
    assert cfg.derived.trainer_ranks == 3 and "bytes for engine" in out and "15.3" in out
    (model / "tokenizer.json").unlink()  # planning needs the sizes alone
    again = ("force_restart=true", "finetune.optim=adamw_8bit")
    placed(*ON_GPUS, "hardware.devices=4xH100-80GB", *again)
    said = refusal(dry_run, "hardware.devices=2xH100-80GB", "force_restart=true")
    assert "on 2 x H100-80GB, 80 GiB does not fit: a trainer on 1 card" in said
    assert "set hardware.devices=4xH100-80GB (more cards)" in said


@pytest.mark.parametrize("given", ["4xH100-80", "0xH100-80GB", "H100"])
def test_cards_that_cannot_be_imagined_are_refused(dry_run: DryRun, given: str) -> None:
    assert "hardware.devices=" in refusal(dry_run, f"hardware.devices={given}")


def test_imagined_cards_start_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipelinerl.launch import main

    arguments = [f"model_path={model}", f"output_dir={tmp_path / 'run'}", "hardware=gpu"]
    assert main(["+domain=guessing", *arguments, "hardware.devices=4xH100-80GB"]) == 2
    assert "such cards are imagined; put DRY_RUN=1 before the command" in capsys.readouterr().err


SEEN = json.loads((ROOT / "benchmarks/results/gpu_sizes.json").read_text())
MARGIN_OF_THEN = 2.0
"""GiB beside an engine's share when these runs were planned."""


@pytest.mark.parametrize("cell", SEEN["cells"], ids=lambda cell: f"{cell['arm']} {cell['role']}")
def test_todays_estimates_lie_at_most_a_tenth_above_what_cards_showed(cell: dict[str, Any]) -> None:
    """Rows of 12,000 tokens: the 8B in three shards, all recomputed; the 4B `selective`; experts eager."""
    if cell["role"] == "engine":
        printed = SEEN["rows"][cell["arm"]]["printed_engine_gib"]
        estimate = (printed - MARGIN_OF_THEN) * GIB + UNCOUNTED
    else:
        slice_ = decoder_shape(described("30B-A3B") | {"num_hidden_layers": 6})
        modes: dict[str, tuple[DecoderShape | None, int, Checkpointing, bool]] = {
            "8B on four": (shape("8B"), 3, True, True),
            "4B on two": (shape("4B"), 1, "selective", True),
            "4B shared": (shape("4B"), 1, "selective", True),
            "experts on two": (slice_, 1, True, False),
        }
        one, ranks, mode, compiled = modes[cell["arm"]]
        assert one is not None
        sharding = Sharding() if ranks > 1 else None
        state = state_bytes(one, Config().finetune, ranks, sharding)
        estimate = needed_bytes(one, mode, compiled, 12000, state)
    assert 1.0 <= estimate / GIB / cell["peak_gib"] <= 1.10


OF_LAYERS = json.loads((ROOT / "benchmarks/results/gpu_models.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("arm", "size", "mode", "shares"),
    [
        ("Gemma-3-4B's shape on two cards", "Gemma-3-4B", False, True),
        ("hybrid on two", "Qwen3.5-4B", "selective", True),
        ("hybrid on two, nothing shared", "Qwen3.5-4B", "selective", False),
    ],
)
def test_estimates_for_rows_as_full_as_they_were_lie_at_most_a_tenth_above_what_cards_showed(
    arm: str, size: str, mode: Checkpointing, shares: bool
) -> None:
    """Other kinds of layers, by one rank that computed rows of 12,000 tokens filled to 77 or 84 %."""
    steps, one = OF_LAYERS[arm]["steps"], shape(size)
    tokens = round(12000 * max(step["throughput/row_fill"] for step in steps))
    state = state_bytes(one, Config().finetune, 1, None)
    estimate = needed_bytes(one, mode, True, tokens, state, shares)
    assert 1.0 <= estimate / max(step["memory/device_peak_bytes"] for step in steps) <= 1.10


def test_a_card_is_imagined_with_the_memory_that_its_driver_reports() -> None:
    assert card(80).total / GIB == pytest.approx(79.6, abs=0.1)
    with pytest.raises(ConfigError, match="imagine at least one card"):
        imagined_cards("0xH100-80GB")
