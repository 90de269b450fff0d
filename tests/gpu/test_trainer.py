"""The trainer on a CUDA device beside float32 on the CPU, or float64. Skipped without one."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from pipelinerl.config.finetune import Checkpointing, RLConfig
from pipelinerl.finetune import compile_later
from pipelinerl.finetune.build import learner_of
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step, encode
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling import segments
from pipelinerl.modeling.attention import varlen_attention
from pipelinerl.modeling.logprobs import token_scores
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.prefixes import Prefixes
from pipelinerl.modeling.segments import Segments
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.weights.transports.file import FileTransport
from tests.support.builders import ready, trainer_config, write_steps
from tests.support.policy import VOCAB, tiny_model
from tests.support.tiny_model import causal_lm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RL = RLConfig(epsilon_high=4.0, kl_coef=0.1, entropy_bonus=0.01)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    expected = expected.double().cpu()
    return float((found.double().cpu() - expected).norm() / expected.norm())


def small_model() -> PreTrainedModel:
    """Heads of 64, which the attention kernels of a GPU take."""
    return causal_lm(VOCAB, hidden=256, heads=4, kv_heads=2, spread=0.05)


def learner(folder: Path, model: PreTrainedModel, **fields: object) -> Learner:
    return learner_of(model, trainer_config(folder, model, rl=RL, **fields), Ranks())


def stages(share: bool) -> PipelineBatchEncoding:
    """Twelve texts that begin alike in threes, and another that goes through one of them."""
    samples = []
    for i in range(13):
        first, own = ready(100 + i // 3), ready(i)
        ids = np.concatenate([first.input_ids, own.input_ids])
        masked = np.full(len(first.input_ids), MASKED_TOKEN_ID, np.int32)
        samples.append(ready(i, (-1.0) ** i, input_ids=ids, labels=np.concatenate([masked, own.labels])))
    (batch,) = assemble_step(samples, 0, 1024, share=share)[0]
    assert (batch.n_computed < batch.n_tokens) == share
    return batch


def gradient(one: Learner, batch: PipelineBatchEncoding | None = None) -> torch.Tensor:
    if batch is None:
        batch = encode([ready(i, (-1.0) ** i) for i in range(12)], 0, 12)
    one.accumulate(batch, targets_of(batch, one.rl), Coefficients(0.1, 0.01))
    parameters = [p for group in one.optimiser.param_groups for p in group["params"]]
    return torch.cat([p.grad.flatten().float().cpu() for p in parameters if p.grad is not None])


@pytest.mark.parametrize(
    ("bfloat16", "mode", "compiled", "tolerance"),
    [
        (False, False, False, 1e-3),
        (True, False, False, 0.05),
        (True, True, True, 0.05),
        (True, 2, True, 0.05),
        (True, "selective", False, 0.05),
        (True, "selective", True, 0.05),
    ],
)
def test_gradients_match_float32_on_the_cpu(
    tmp_path: Path, bfloat16: bool, mode: Checkpointing, compiled: bool, tolerance: float
) -> None:
    model = small_model()
    expected = gradient(learner(tmp_path, prepare_model(copy.deepcopy(model))))
    fast = prepare_model(model, "cuda", mode, compile=compiled)
    found = gradient(learner(tmp_path, fast, load_as_bf16=bfloat16, hardware={"kind": "gpu"}))
    assert distance(found, expected) < tolerance


@pytest.mark.parametrize(
    ("bfloat16", "mode", "compiled", "tolerance"),
    [
        (False, False, False, 1e-3),
        (True, False, False, 0.05),
        (True, False, True, 0.05),
        (True, True, True, 0.05),
    ],
)
@pytest.mark.parametrize("by_levels", [True, False])
def test_gradients_of_shared_prefixes_match_float32_on_the_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_levels: bool,
    bfloat16: bool,
    mode: Checkpointing,
    compiled: bool,
    tolerance: float,
) -> None:
    monkeypatch.setattr(segments, "LEVELS_FROM", 0.0 if by_levels else np.inf)
    model = small_model()
    expected = gradient(learner(tmp_path, prepare_model(copy.deepcopy(model))), stages(share=False))
    fast = prepare_model(model, "cuda", mode, compile=compiled)
    one = learner(tmp_path, fast, load_as_bf16=bfloat16, hardware={"kind": "gpu"})
    assert distance(gradient(one, stages(share=True)), expected) < tolerance


def test_gradients_without_the_attention_kernel_match_too(tmp_path: Path) -> None:
    model = small_model()
    expected = gradient(learner(tmp_path, prepare_model(copy.deepcopy(model))))
    text_by_text = prepare_model(model, "cuda", True, flash_attention=False)
    assert (
        distance(
            gradient(learner(tmp_path, text_by_text, load_as_bf16=True, hardware={"kind": "gpu"})), expected
        )
        < 0.05
    )


def test_weights_for_a_file_are_copied_to_memory_that_is_page_locked_once(tmp_path: Path) -> None:
    transport, pointers = FileTransport(tmp_path, torch.bfloat16), set()
    for version in range(3):
        weight = torch.randn(3001, 257, device="cuda")
        tensors = {"w": weight, "transposed": weight.T, "rounded": weight.bfloat16(), "none": weight[:0]}
        staged = transport.stage(version, tensors.items())
        found = load_file(staged.info["path"])
        assert all(torch.equal(found[name], one.bfloat16().cpu()) for name, one in tensors.items())
        kept = transport._memory.reserve(1)
        assert kept.is_pinned()
        pointers.add(kept.data_ptr())
    assert len(pointers) == 1
    transport.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_their_gradients_match_float64(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(700, 128, generator=generator).to(dtype)
    weight = (torch.randn(20_011, 128, generator=generator) / 3).to(dtype)
    targets = torch.randint(0, len(weight), (700,), generator=generator)
    upstream = torch.randn(2, 700, generator=generator)
    ours = [x.cuda().requires_grad_() for x in (hidden, weight)]
    scores = token_scores(ours[0], ours[1], targets.cuda(), 0.8, None, 700 * 4096)
    (upstream.cuda() * torch.stack([scores.logprobs, scores.entropy])).sum().backward()
    exact = [x.double().requires_grad_() for x in (hidden, weight)]
    logp = (exact[0] @ exact[1].T / 0.8).log_softmax(-1)
    plain = torch.stack([logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)])
    (upstream * plain).sum().backward()
    assert float((scores.logprobs.cpu() - plain[0]).detach().abs().max()) < 1e-3
    assert float((scores.entropy.cpu() - plain[1]).detach().abs().max()) < 1e-3
    for found, expected in zip(ours, exact):
        assert found.grad is not None and expected.grad is not None
        assert distance(found.grad, expected.grad) < (1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_the_loss_of_a_large_pack_stays_below_a_gigabyte() -> None:
    hidden = torch.randn(16_384, 2048, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(151_936, 2048, device="cuda") * 0.02).bfloat16().requires_grad_()
    targets = torch.randint(0, len(weight), (len(hidden),), device="cuda")
    token_scores(hidden[:64], weight, targets[:64]).logprobs.sum().backward()  # cuBLAS takes its workspace
    hidden.grad = weight.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    token_scores(hidden, weight, targets).logprobs.sum().backward()
    assert weight.grad is not None
    used = torch.cuda.max_memory_allocated() - before - weight.grad.nbytes
    assert used <= 1e9


@pytest.mark.parametrize("rule", [{}, {"sliding_window": 2}, {"sliding_window": 50}, {"softcap": 2.0}])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_packed_attention_matches_float32_and_its_gradients(
    kv_heads: int, share: bool, rule: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(1)
    offsets = np.array([0, 5, 6, 200, 333], np.int32)
    shapes = [(1, heads, 333, 64) for heads in (4, kv_heads, kv_heads)]
    plain = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    fast = [x.detach().cuda().bfloat16().requires_grad_() for x in plain]
    upstream = torch.randn(1, 333, 4, 64, generator=generator)
    module = torch.nn.Module()
    # Shared: the first sample's 200 tokens begin the second, whose other 133 are computed.
    known = Prefixes(np.array([0, 200, 533]), np.array([0, 200], np.int32))
    on_host, on_card = (
        Segments.from_prefixes(known, device, rule.get("sliding_window"))
        if share
        else Segments.from_offsets(offsets, device)
        for device in ("cpu", "cuda")
    )
    expected, _ = varlen_attention(module, plain[0], plain[1], plain[2], None, segments=on_host, **rule)
    found, _ = varlen_attention(module, fast[0], fast[1], fast[2], None, segments=on_card, **rule)
    (expected * upstream).sum().backward()
    (found * upstream.cuda()).sum().backward()
    assert distance(found, expected) < 0.02
    for ours, theirs in zip(fast, plain):
        assert ours.grad is not None and theirs.grad is not None
        assert distance(ours.grad, theirs.grad) < 0.02


@pytest.mark.parametrize("share", [False, True])
def test_a_micro_batch_never_waits_for_the_device(tmp_path: Path, share: bool) -> None:
    one = learner(
        tmp_path, prepare_model(small_model(), "cuda", True), load_as_bf16=True, hardware={"kind": "gpu"}
    )
    batch = stages(share)
    gradient(one, batch)
    targets = targets_of(batch, one.rl)
    torch.cuda.set_sync_debug_mode("error")
    try:
        one.accumulate(batch, targets, Coefficients(0.1, 0.01))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_bfloat16_run_trains_and_resumes(tmp_path: Path, compiled: bool) -> None:
    write_steps(tmp_path, 4, 6)
    fast: dict[str, Any] = {"compile": compiled, "gradient_checkpointing": "selective" if compiled else False}
    chosen = trainer_config(tmp_path, tiny_model(), hardware={"kind": "gpu"}, load_as_bf16=True, **fast)
    Trainer(chosen, Ranks()).run()
    again = Trainer(chosen, Ranks())
    assert again.counters.completed_steps == 4
    assert again.learner.masters is not None
    assert all(master.dtype == torch.float32 for master in again.learner.masters.master_of().values())


def test_layers_compiled_between_two_steps_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_later, "COMPILE_WORTH_S", 0.0)
    write_steps(tmp_path, 4, 6)
    later: dict[str, Any] = {"compile": "later", "gradient_checkpointing": "selective"}
    chosen = trainer_config(tmp_path, tiny_model(), hardware={"kind": "gpu"}, load_as_bf16=True, **later)
    with caplog.at_level("INFO", logger="pipelinerl"):
        Trainer(chosen, Ranks()).run()
    said = [record.message for record in caplog.records]
    assert len([line for line in said if line.startswith("compiling: the 2 steps left")]) == 1
    assert not [line for line in said if line.startswith("the layers stay uncompiled")]


@pytest.mark.parametrize("compile", [False, True])
def test_inputs_in_host_memory_change_no_gradient_and_leave_the_card(tmp_path: Path, compile: bool) -> None:
    """Two micro-batches behind one another; of eight layers the inputs of two lie on the card.

    A row's inputs are many times a layer's gradients, which come into being while inputs go.
    """
    found: dict[Checkpointing, list[torch.Tensor]] = {}
    peaks: dict[Checkpointing, int] = {}
    modes: tuple[Checkpointing, ...] = (True, "offload")
    samples = [ready(seed, (-1.0) ** seed) for seed in range(4000)]
    batches = assemble_step(samples, 0, 16_384)[0]
    assert len(batches) > 1
    for mode in modes:
        torch.manual_seed(0)
        model = prepare_model(deep_model(), "cuda", mode, compile=compile)
        one = learner(tmp_path / str(mode), model, load_as_bf16=True, hardware={"kind": "gpu"})
        for _ in range(2):  # the first one warms up
            one.optimiser.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            for batch in batches:
                one.accumulate(batch, targets_of(batch, RL), Coefficients(0.1, 0.01))
            torch.cuda.synchronize()
            peaks[mode] = torch.cuda.max_memory_allocated() - before
        found[mode] = [p.grad for group in one.optimiser.param_groups for p in group["params"]]
    for ours, expected in zip(found["offload"], found[True], strict=True):
        assert distance(ours, expected) < 1e-2
    row = max(batch.n_computed for batch in batches) * DEEP_WIDTH * 2
    assert peaks["offload"] < peaks[True] - 3 * row


DEEP_WIDTH = 128


def deep_model() -> PreTrainedModel:
    """Eight layers that are wide beside the vocabulary, so that their inputs are most of what is kept."""
    config = copy.deepcopy(causal_lm(VOCAB, hidden=DEEP_WIDTH, heads=2, kv_heads=1, spread=0.05).config)
    config.num_hidden_layers, config.layer_types = 8, ["full_attention"] * 8
    torch.manual_seed(0)
    return type(causal_lm(VOCAB))(config)
