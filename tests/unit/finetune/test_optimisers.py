"""Every optimizer that the configuration accepts trains, follows its formula and resumes; schedules."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GptOssConfig,
    MixtralConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from pipelinerl.config.finetune import FinetuneConfig
from pipelinerl.finetune.lion import Lion
from pipelinerl.finetune.optimiser import (
    OwnStates,
    build_optimiser,
    decayed_parameters,
    learning_rate_factor,
)
from tests.support.builders import VALUE_HEAD
from tests.support.policy import VOCAB
from tests.support.tiny_model import causal_lm
from tests.support.training import SAVED, assert_resumes_bit_for_bit, saved, train, trainer


@pytest.mark.parametrize("name", get_args(FinetuneConfig.model_fields["optim"].annotation))
def test_decay_skips_norms_and_biases(model: PreTrainedModel, name: str) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("torchao")
    optimiser = build_optimiser(model, FinetuneConfig(optim=name, weight_decay=0.1))
    decayed, plain = optimiser.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() == 2 for p in decayed["params"]) and all(p.dim() == 1 for p in plain["params"])
    assert sum(len(g["params"]) for g in optimiser.param_groups) == len(list(model.parameters()))


SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 16, "head_dim": 4}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0, "eos_token_id": 1}


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        (MixtralConfig(**SIZES, **HEADS, num_local_experts=2), {"norm"}),
        (GptOssConfig(**SIZES, **HEADS, num_local_experts=2), {"norm", "bias", "sinks"}),
        (CohereConfig(**SIZES, **HEADS, use_qk_norm=True), {"norm"}),  # a matrix for each head
    ],
    ids=lambda given: type(given).__name__,
)
def test_decay_takes_experts_and_routers_and_skips_their_biases_and_norms_of_heads(
    config: PretrainedConfig, plain: set[str]
) -> None:
    model = AutoModelForCausalLM.from_config(config)
    taken = decayed_parameters(model)
    for name, parameter in model.named_parameters():
        assert (id(parameter) not in taken) == any(part in name for part in plain), name
    experts = [name for name, one in model.named_parameters() if id(one) in taken and "experts" in name]
    assert bool(experts) == hasattr(config, "num_local_experts")


@pytest.mark.parametrize("name", ["adafactor", "lion"])
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path, name: str) -> None:
    straight, _ = assert_resumes_bit_for_bit(tmp_path, optim=name)
    before, after = load_file(straight / "model/model.safetensors"), saved(straight)
    assert any(not torch.equal(after[key], before[key]) for key in after)


@pytest.mark.parametrize("load_as_bf16", [False, True])
def test_moments_in_8_bits_resume_bit_for_bit(tmp_path: Path, load_as_bf16: bool) -> None:
    pytest.importorskip("torchao")
    for name in ("straight", "resumed"):  # moments of small matrices are float32
        causal_lm(VOCAB, hidden=64).save_pretrained(tmp_path / name / "model")
    straight, _ = assert_resumes_bit_for_bit(tmp_path, optim="adamw_8bit", load_as_bf16=load_as_bf16)
    state = saved(straight, SAVED[1])
    parts = {name.rpartition(".")[2]: tensor for name, tensor in state.items() if "exp_avg_sq." in name}
    assert parts["codes"].dtype == torch.uint8 and parts["codes"].numel() == 256 * parts["scale"].numel()
    assert parts["qmap"].shape == (256,) and float(parts["scale"].max()) > 0


def test_moments_in_8_bits_are_those_of_adamw_but_for_their_rounding(
    gradients: Callable[[int], torch.Tensor],
) -> None:
    """Each step rounds a moment by half the distance of two codes at most, in units of its block's largest.

    Codes are farthest apart near 1: 64 of them (128 without a sign) divide what lies between 0.1 and 1.
    """
    pytest.importorskip("torchao")
    steps, betas, width = 6, (0.9, 0.95), {"exp_avg": 0.9 / 64, "exp_avg_sq": 0.9 / 128}
    layers = [torch.nn.Linear(96, 80, bias=False) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    start = layers[0].weight.detach().clone()
    tune = FinetuneConfig(learning_rate=1e-2, weight_decay=0.1, adam_beta1=betas[0], adam_beta2=betas[1])
    names = ("adamw_8bit", "adamw_torch")
    chosen = [tune.model_copy(update={"optim": name}) for name in names]
    both = [build_optimiser(layer, one) for layer, one in zip(layers, chosen)]
    exact = {name: torch.zeros(80, 96, dtype=torch.float64) for name in width}
    bound = {name: torch.zeros(80 * 96 // 256, dtype=torch.float64) for name in width}
    for step in range(steps):
        gradient = gradients(step)
        for layer, optimiser in zip(layers, both):
            layer.weight.grad = gradient.clone()
            optimiser.step()
        for (name, moment), beta, new in zip(
            exact.items(), betas, (gradient.double(), gradient.double() ** 2)
        ):
            moment.mul_(beta).add_(new, alpha=1 - beta)
            largest = moment.view(-1, 256).abs().amax(1) + beta * bound[name]
            bound[name] = beta * bound[name] + width[name] / 2 * largest
    state = both[0].state[layers[0].weight]
    for name, moment in exact.items():
        error = (state[name].dequantize().double() - moment).view(-1, 256).abs().amax(1)
        assert bool((error <= bound[name] * 1.001).all()) and float(error.max()) > 0
    moved, adamw = (layer.weight.detach() - start for layer in layers)
    assert float((moved - adamw).norm()) < 0.1 * float(adamw.norm())


@pytest.fixture
def gradients() -> Callable[[int], torch.Tensor]:
    """Of the size that gradients have, some rows much smaller than others."""
    generator = torch.Generator().manual_seed(3)
    sizes = 1e-3 * torch.logspace(-2, 0, 80)[:, None]
    mean = torch.randn(80, 96, generator=generator)
    return lambda step: sizes * (mean + torch.randn(80, 96, generator=generator))


@pytest.mark.parametrize(("count", "kept"), [(1, True), (3, True), (8, False)])
def test_saved_moments_in_8_bits_are_shared_out_over_any_number_of_ranks(count: int, kept: bool) -> None:
    """Two rows of 384 numbers are three blocks; of 40 rows 3 ranks have 14, 14 and 12, and 8 have 5 each."""
    pytest.importorskip("torchao")
    layer = torch.nn.Linear(384, 40, bias=False)
    optimiser = build_optimiser(layer, FinetuneConfig(optim="adamw_8bit"))
    layer.weight.grad = torch.randn(40, 384)
    optimiser.step()
    states = optimiser.state[layer.weight]
    assert isinstance(optimiser, OwnStates)
    plain = optimiser.plain_state(layer.weight, states)
    assert sorted(plain) == sorted(
        [
            "step",
            *(f"{name}.{part}" for name in ("exp_avg", "exp_avg_sq") for part in ("codes", "scale", "qmap")),
        ]
    )
    for rank in range(count):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
        try:
            mesh = init_device_mesh("cpu", (count,))
            shard = distribute_tensor(layer.weight.detach(), mesh, [Shard(0)], src_data_rank=None)
            own = optimiser.own_state(shard, plain)
        finally:
            dist.destroy_process_group()
        assert float(own["step"]) == 1.0
        for name in ("exp_avg", "exp_avg_sq"):
            local, whole = own[name].to_local(), states[name]
            assert hasattr(local, "codes") is kept
            if kept:
                assert torch.equal(local.codes, plain[f"{name}.codes"].chunk(count)[rank])
            numbers = local.dequantize() if kept else local
            assert torch.equal(numbers, whole.dequantize().chunk(count)[rank])


def test_adams_constants_are_those_of_the_configuration(tmp_path: Path) -> None:
    """Also after a resume: like the rate they belong to the configuration and not to the state."""

    def constants(**finetune: float) -> set[tuple[tuple[float, float], float]]:
        groups = trainer(tmp_path, **finetune).learner.optimiser.param_groups
        return {(group["betas"], group["eps"]) for group in groups}

    assert constants() == {((0.9, 0.999), 1e-8)}
    train(tmp_path, interrupt_train_steps=2)
    given = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-5}
    assert constants(**given) == {((0.8, 0.95), 1e-5)}


def test_the_state_of_another_optimiser_or_model_is_refused(tmp_path: Path) -> None:
    train(tmp_path, interrupt_train_steps=2)
    with pytest.raises(ValueError, match=r"saved with AdamW over .*, this run trains with Lion over"):
        trainer(tmp_path, optim="lion")
    with pytest.raises(ValueError, match=r"set finetune\.optim and finetune\.model_class as before"):
        trainer(tmp_path, model_class=VALUE_HEAD)


def test_a_run_that_is_interrupted_and_goes_on_has_the_schedules_of_one_that_is_not(tmp_path: Path) -> None:
    rl = {"kl_coef": 0.4, "final_kl_coef": 0.0}

    def coefficients(folder: Path) -> list[float]:
        rows = (folder / "finetune" / "metrics.jsonl").read_text().splitlines()
        return [row["rl/kl_coef"] for row in map(json.loads, rows) if "rl/kl_coef" in row]

    train(tmp_path / "straight", rl=rl)
    train(tmp_path / "halves", rl=rl, interrupt_train_steps=2)
    train(tmp_path / "halves", rl=rl)
    assert coefficients(tmp_path / "halves") == coefficients(tmp_path / "straight")
    assert coefficients(tmp_path / "straight") == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_lion_follows_its_algorithm() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 2))
    ours, momentum = weight.detach().clone(), torch.zeros(3, 2)
    optimiser = Lion([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    for _ in range(4):
        weight.grad = torch.randn(3, 2)
        ours = ours * (1 - 0.1 * 0.5) - 0.1 * (0.9 * momentum + 0.1 * weight.grad).sign()
        momentum = 0.99 * momentum + 0.01 * weight.grad
        optimiser.step()
        torch.testing.assert_close(weight.detach(), ours)
    with pytest.raises(ValueError, match="no closure"):
        optimiser.step(lambda: None)


def test_schedules() -> None:
    assert learning_rate_factor(0, "constant", 5, 10) == 1.0
    assert learning_rate_factor(0, "cosine", 4, 10) == pytest.approx(0.2)
    assert learning_rate_factor(4, "cosine", 4, 10) == pytest.approx(1.0)
    assert learning_rate_factor(10, "cosine", 4, 10) == pytest.approx(0.0)
    assert learning_rate_factor(7, "linear", 4, 10) == pytest.approx(0.5)
