"""What `auto` becomes: as little recomputation as fits into a GPU, compilation where it can pay."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config import Config, Job
from pipelinerl.config.finetune import Checkpointing, Sharding
from pipelinerl.launcher.cards import GIB, Card
from pipelinerl.launcher.decoder_shape import DecoderShape, decoder_shape
from pipelinerl.launcher.trainer_choice import TrainerChoice, choose_trainer
from pipelinerl.launcher.trainer_memory import needed_bytes, state_bytes
from tests.unit.launcher.conftest import ON_GPUS, ROOT, Placed

QWEN = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
SIZES = {
    "0.6B": (28, 1024, 3072),
    "1.7B": (28, 2048, 6144),
    "4B": (36, 2560, 9728),
}
MODES: dict[str, Checkpointing] = {"full": True, "every-2": 2, "selective": "selective", "none": False}
MEASURED = json.loads((ROOT / "benchmarks/results/gpu_trainer_rows.json").read_text())["rows"]
ROWS = [row for row in MEASURED if row["name"].startswith("trainer/") and row["name"].count("/") == 2]
H200, H100, A10 = (Card(total=n * GIB, free=n * GIB) for n in (140, 80, 24))
Choose = Callable[..., TrainerChoice]


def described(size: str) -> dict[str, object]:
    layers, hidden, mlp = SIZES[size]
    heads = {"num_attention_heads": 32} if size == "4B" else {}
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": mlp}
    return QWEN | {"vocab_size": 151936} | sizes | heads


def shape(size: str) -> DecoderShape:
    found = decoder_shape(described(size))
    assert found is not None
    return found


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['size']} {row['name']}" for row in ROWS])
def test_estimates_lie_just_above_what_was_measured(row: dict[str, object]) -> None:
    """Measured with rows of 16,384 tokens, AdamW and float32 masters on one card."""
    one, (_, way, mode) = shape(str(row["size"])), str(row["name"]).split("/")
    assert one.parameters == pytest.approx(row["parameters"], rel=1e-3)
    state = state_bytes(one, Config().finetune, 1, None)
    needed = needed_bytes(one, MODES[mode], way == "compiled", 16384, state)
    assert 1.0 <= needed / 1e9 / float(str(row["peak_gb"])) <= 1.14


def test_the_estimate_of_two_shards_lies_above_what_was_measured() -> None:
    found = json.loads((ROOT / "benchmarks/results/gpu_sharded.json").read_text())
    measured = found["figures"]["peak memory of a GPU"]["value"]
    state = state_bytes(shape("4B"), Config().finetune, 2, Sharding())
    needed = needed_bytes(shape("4B"), True, True, 16384, state) / 1e9
    # That program kept no whole copy of the weights for engines, 8 GB.
    assert measured <= needed <= 1.25 * measured


@pytest.fixture
def choose(tmp_path: Path) -> Choose:
    """The choice for a model of some size on a trainer's cards."""

    def run(size: str, card: Card | None = H200, trainers: int = 1, **changes: object) -> TrainerChoice:
        config = described(size) if size in SIZES else json.loads(size)
        (tmp_path / "config.json").write_text(json.dumps(config))
        top = {key: changes.pop(key) for key in ("use_fsdp", "world", "engine_gpus") if key in changes}
        gpus = list(range(1, 1 + trainers))
        jobs = [
            Job(kind="actor_llm", idx=0, gpus=top.pop("engine_gpus", [0])),  # type: ignore[arg-type]
            Job(kind="finetune", idx=1, gpus=gpus),
        ]
        if changes.pop("reference", False):
            jobs.append(Job(kind="preprocessor", idx=2, gpus=gpus[-1:]))
            changes["rl"] = {"kl_coef": 0.1}
        derived = {"trainer_ranks": trainers, "texts_per_step": 8, "texts_per_update": 8}
        finetune = {"seq_length": 16384} | changes
        tree = {"model_path": str(tmp_path), "finetune": finetune, "jobs": jobs, "derived": derived} | top
        devices = [str(index) for index in range(1 + trainers)]
        return choose_trainer(Config.model_validate(tree), devices, True, lambda device: card)

    return run


@pytest.mark.parametrize(
    ("size", "card", "plain", "compiled"),
    [
        ("0.6B", H200, False, False),
        ("1.7B", H200, False, False),
        ("4B", H200, True, "selective"),
        ("1.7B", H100, 2, False),
        ("4B", H100, True, True),
        ("0.6B", A10, True, "selective"),
    ],
)
def test_as_little_is_recomputed_as_fits(
    choose: Choose, size: str, card: Card, plain: Checkpointing, compiled: Checkpointing
) -> None:
    found = choose(size, card)
    assert (found.gradient_checkpointing, found.compiled_checkpointing) == (plain, compiled)
    assert found.compile == "later" and "rows of 16384 tokens" in found.because_checkpointing


def test_shards_shorter_rows_and_adapters_leave_more_room(choose: Choose) -> None:
    assert choose("4B", H100).compiled_checkpointing is True
    assert choose("4B", H100, trainers=4, use_fsdp=True).compiled_checkpointing == "selective"
    assert choose("4B", H100, trainers=4).compiled_checkpointing is True  # each has all the weights
    assert choose("1.7B", H100, seq_length=8192).gradient_checkpointing is False
    assert choose("4B", H100, lora={"enabled": True}, seq_length=8192).compiled_checkpointing is False


def test_an_engine_on_the_trainer_s_card_takes_its_share(choose: Choose) -> None:
    assert choose("1.7B").compiled_checkpointing is False
    assert choose("1.7B", engine_gpus=[1]).compiled_checkpointing is True


def test_a_reference_on_the_trainer_s_card_takes_its_share(choose: Choose) -> None:
    assert choose("1.7B", H100).compiled_checkpointing is False
    assert choose("1.7B", H100, reference=True).compiled_checkpointing == "selective"


EXPERTS = json.dumps(described("1.7B") | {"num_experts": 8, "num_experts_per_tok": 2})


@pytest.mark.parametrize(
    ("size", "changes", "because"),
    [
        ("1.7B", {"card": None}, "the card's memory cannot be read"),
        ("{}", {}, "cannot be read"),
        (EXPERTS, {}, "not measured for layers with experts"),
        ("1.7B", {"load_as_bf16": False}, "sample by sample"),
        ("1.7B", {"use_flash_attention": False}, "sample by sample"),
        ("1.7B", {"reentrant_checkpointing": True}, "finetune.reentrant_checkpointing=true"),
    ],
)
def test_what_is_not_known_recomputes_everything(
    choose: Choose, size: str, changes: dict[str, object], because: str
) -> None:
    found = choose(size, **changes)
    assert found.gradient_checkpointing is True is found.compiled_checkpointing
    assert because in found.because_checkpointing


@pytest.mark.parametrize(
    ("size", "changes", "compiled"),
    [
        ("1.7B", {}, "later"),
        (EXPERTS, {}, "later"),
        ("1.7B", {"load_as_bf16": False}, False),
        ("1.7B", {"use_flash_attention": False}, False),
        ("1.7B", {"compile": True}, True),
        ("1.7B", {"compile": False}, False),
    ],
)
def test_layers_are_compiled_where_that_can_pay(
    choose: Choose, size: str, changes: dict[str, object], compiled: object
) -> None:
    assert choose(size, **changes).compile == compiled


def test_what_is_given_stays_and_the_table_has_the_reasons(placed: Placed) -> None:
    cfg, out = placed(*ON_GPUS, "finetune.gradient_checkpointing=3", "finetune.compile=true")
    assert cfg.derived.compiled_checkpointing == 3 and cfg.derived.compile is True
    assert "from the start" in out and "one in 3" in out
    cfg, out = placed(*ON_GPUS)
    assert cfg.finetune.compile == "auto" and cfg.derived.compile == "later"
    assert cfg.derived.gradient_checkpointing is True
    assert "if 5 minutes of work are left" in out and "cannot be read" in out


def test_on_a_cpu_nothing_is_compiled_or_recomputed(placed: Placed) -> None:
    cfg, out = placed()
    assert (cfg.derived.compile, cfg.derived.gradient_checkpointing) == (False, False)
    assert "compilation" not in out


def test_what_compilers_made_is_kept_for_the_next_run(
    placed: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    placed(*ON_GPUS)
    script = (tmp_path / "run/finetune/start.sh").read_text()
    assert f"TORCHINDUCTOR_CACHE_DIR={tmp_path}/cache/pipelinerl/inductor" in script
    assert f"{tmp_path}/cache/pipelinerl/triton" not in script
