"""Experts that are replayed: the choice is given, everything else is the model's own, gradients too."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from pipelinerl.modeling.activations import checkpoint_layers
from pipelinerl.modeling.routing import Routers
from tests.support.tiny_model import causal_lm, mixture_lm

EXPERTS, ACTIVE, VOCAB, LENGTH, LAYERS = 8, 2, 32, 12, 2
Weigh = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def softmax_first(router: Any, logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.stack([functional.softmax(row.float(), -1)[e] for row, e in zip(logits, at, strict=True)])


def renormalised(router: Any, logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    chosen = softmax_first(router, logits, at)
    return chosen / chosen.sum(-1, keepdim=True)


def sigmoid_scaled(router: Any, logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    chosen = torch.stack([torch.sigmoid(row)[e] for row, e in zip(logits, at, strict=True)])
    return chosen / chosen.sum(-1, keepdim=True) * router.routed_scaling_factor


LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
ALL_FULL = {"layer_types": ["full_attention"] * LAYERS}
GROUPED = {"first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "num_key_value_heads": 4, **LATENT}
ONE_GROUP = {"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1}
ERNIE = {"moe_num_experts": EXPERTS, "moe_k": ACTIVE, "moe_layer_start_index": 0}
USUAL = (0, 1, 2)
# Name, its own fields, weights of the chosen experts as its paper has them, and where a router gives logits,
# weights and indices.
KINDS: list[tuple[str, dict[str, Any], Weigh, tuple[int, int, int]]] = [
    ("Qwen3Moe", {"num_experts": EXPERTS, "norm_topk_prob": True}, renormalised, USUAL),
    ("Qwen3Moe", {"num_experts": EXPERTS, "norm_topk_prob": False}, softmax_first, USUAL),
    ("Qwen2Moe", {"num_experts": EXPERTS, "shared_expert_intermediate_size": 16}, softmax_first, USUAL),
    ("Mixtral", {"num_local_experts": EXPERTS}, renormalised, USUAL),
    ("Olmoe", {"num_experts": EXPERTS}, softmax_first, USUAL),
    ("GraniteMoe", {"num_local_experts": EXPERTS}, renormalised, (2, 1, 0)),
    ("GptOss", {"num_local_experts": EXPERTS}, renormalised, USUAL),
    ("MiniMax", {"num_local_experts": EXPERTS, **ALL_FULL}, renormalised, USUAL),
    ("Ernie4_5_Moe", ERNIE, renormalised, USUAL),
    ("Glm4Moe", {"n_routed_experts": EXPERTS, **ONE_GROUP}, sigmoid_scaled, USUAL),
    ("DeepseekV3", {"n_routed_experts": EXPERTS, **GROUPED}, sigmoid_scaled, USUAL),
]
IDS = [f"{name}-{weigh.__name__}" for name, _, weigh, _ in KINDS]


def model_of(name: str, own: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "num_experts_per_tok": ACTIVE, "initializer_range": 0.3, "max_position_embeddings": 64,
        "pad_token_id": None,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**sizes | own)
    config._attn_implementation = "eager"
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def some_routes(seed: int = 0, layers: int = LAYERS) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(EXPERTS)[:ACTIVE] for _ in range(LENGTH * layers)]
    return np.array(rows, np.uint8).reshape(LENGTH, layers, ACTIVE)


IDS_1L = torch.from_numpy(np.random.default_rng(3).integers(0, VOCAB, (1, LENGTH)))
CPU = torch.device("cpu")


def outcome(model: PreTrainedModel) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and gradients of a loss of them."""
    model.zero_grad()
    logits = model(input_ids=IDS_1L, use_cache=False).logits
    functional.cross_entropy(logits[0, :-1], IDS_1L[0, 1:]).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), found


def fixed(model: PreTrainedModel, routes: np.ndarray, weigh: Weigh, places: tuple[int, int, int]) -> None:
    """Give the routers of a model these choices, with weights from their logits by a formula of this file."""
    for number, layer in enumerate(model.model.layers):
        blocks = [module for module in layer.modules() if hasattr(module, "experts")]
        if not blocks:
            continue
        router = getattr(blocks[0], "gate", None) or blocks[0].router
        at = torch.from_numpy(routes[:, number].astype(np.int64))

        def forward(*given: Any, router: Any = router, own: Any = router.forward, at: Any = at) -> Any:
            out = list(own(*given))
            logits = out[places[0]]
            out[places[1]], out[places[2]] = weigh(router, logits, at).to(out[places[1]].dtype), at
            return tuple(out)

        router.forward = forward


@pytest.mark.parametrize(("name", "own", "weigh", "places"), KINDS, ids=IDS)
def test_replayed_experts_give_what_a_model_with_fixed_experts_gives(
    name: str, own: dict[str, Any], weigh: Weigh, places: tuple[int, int, int]
) -> None:
    routes = some_routes()
    reference, model = model_of(name, own), model_of(name, own)
    free, _ = outcome(reference)
    fixed(reference, routes, weigh, places)
    expected, gradients = outcome(reference)
    assert (free - expected).abs().max() > 1e-3  # these choices are others than its own
    routers = Routers.of(model)
    assert routers is not None
    torch.testing.assert_close(outcome(model)[0], free, rtol=0, atol=0)
    with routers.replaying(routes, None, CPU):
        found, own_gradients = outcome(model)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert own_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(own_gradients[parameter], gradient, rtol=1e-4, atol=1e-6, msg=parameter)
    routed = [n for n in gradients if "gate.weight" in n or "router.weight" in n]
    assert routed and all(own_gradients[n].abs().max() > 0 for n in routed)
    torch.testing.assert_close(outcome(model)[0], free, rtol=0, atol=0)  # behind the block it is free again


def mixture() -> tuple[PreTrainedModel, Routers]:
    model = mixture_lm(VOCAB, spread=0.3)
    routers = Routers.of(model)
    assert routers is not None
    return model, routers


def test_what_was_recorded_and_replayed_is_what_was_computed() -> None:
    model, routers = mixture()
    with routers.noting():
        logits, gradients = outcome(model)
        record = routers.recorded().numpy().astype(np.uint8)
    assert record.shape == (LENGTH, 4, ACTIVE) and len(np.unique(record)) == EXPERTS
    with routers.replaying(record, None, CPU):
        again, same = outcome(model)
        measured = routers.measured()
    torch.testing.assert_close(again, logits, rtol=0, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(same[name], gradient, rtol=0, atol=0)
    assert measured is not None
    counts = routers.counts(torch.cat([measured, torch.tensor([torch.nan])]))
    assert (counts.tokens, counts.replayed, counts.differing) == (LENGTH, LENGTH, 0)
    loads = [np.bincount(record[:, layer].ravel(), minlength=EXPERTS) for layer in range(4)]
    np.testing.assert_array_equal(counts.loads, loads)


def test_tokens_without_a_record_and_torn_records_choose_for_themselves() -> None:
    model, routers = mixture()
    routes, free = some_routes(layers=4), outcome(model)[0]
    with routers.replaying(routes, np.arange(LENGTH, dtype=np.int32), CPU):
        torch.testing.assert_close(outcome(model)[0], free, rtol=0, atol=0)
    with routers.replaying(np.zeros_like(routes), None, CPU):  # one expert twice: nobody wrote these
        torch.testing.assert_close(outcome(model)[0], free, rtol=0, atol=0)
    with routers.replaying(routes, np.arange(5, LENGTH, dtype=np.int32), CPU):
        some = outcome(model)[0]
        chosen = routers.recorded().numpy()
    with routers.noting():
        outcome(model)
        own = routers.recorded().numpy()
    np.testing.assert_array_equal(chosen[:5], routes[:5])
    np.testing.assert_array_equal(chosen[5:, 0], own[5:, 0])  # behind the first layer all has changed
    assert (some[0, :5] - free[0, :5]).abs().max() > 1e-3


def test_the_measured_difference_is_that_of_sets_of_experts() -> None:
    model, routers = mixture()
    with routers.noting():
        outcome(model)
        own = routers.recorded().numpy().astype(np.uint8)
    turned = own[:, :, ::-1].copy()  # the same experts in another order
    turned[3, 0] = [e for e in range(EXPERTS) if e not in own[3, 0]][:ACTIVE]
    with routers.replaying(turned, None, CPU), torch.no_grad():
        model(input_ids=IDS_1L, use_cache=False)
        first = routers.choices[0].differs
    assert first is not None and first.nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_computed_again_replay_the_same_experts(reentrant: bool) -> None:
    (plain, routers), (model, again) = mixture(), mixture()
    checkpoint_layers(model, True, reentrant)
    model.train()
    model.enable_input_require_grads()
    routes = some_routes(1, layers=4)
    with routers.replaying(routes, None, CPU):
        _, expected = outcome(plain)
    with again.replaying(routes, None, CPU):
        _, found = outcome(model)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["Mixtral", "GraniteMoe"])
def test_the_auxiliary_loss_is_that_of_transformers(name: str) -> None:
    own = next(one for kind, one, _, _ in KINDS if kind == name)
    model = model_of(name, own)
    expected = load_balancing_loss_func(
        model(input_ids=IDS_1L, use_cache=False, output_router_logits=True).router_logits, EXPERTS, ACTIVE
    )
    expected.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    routers = Routers.of(model)
    assert routers is not None and routers.may_balance
    routers.keep_scores(True)
    with routers.noting():
        model(input_ids=IDS_1L, use_cache=False)
        loss = routers.balance_loss()
        loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for parameter, gradient in gradients.items():
        found = dict(model.named_parameters())[parameter].grad
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-6)


def test_a_dense_model_has_no_routers_and_others_are_refused() -> None:
    assert Routers.of(causal_lm(VOCAB)) is None
    model = model_of("Glm4Moe", next(own for kind, own, _, _ in KINDS if kind == "Glm4Moe"))
    routers = Routers.of(model)
    assert routers is not None and not routers.may_balance
    with pytest.raises(ValueError, match="routes of 3 layers with 2 experts each, but the policy has 2"):
        routers.check(np.zeros((4, 3, 2), np.uint8))
    with pytest.raises(ValueError, match="a route names expert 9; the policy has 8"):
        routers.check(np.full((4, 2, 2), 9, np.uint8))
    odd = mixture_lm(VOCAB)
    for layer in odd.model.layers:
        layer.mlp.gate.forward = lambda hidden, gate=layer.mlp.gate: _sorted(hidden @ gate.weight.T)
    with pytest.raises(ValueError, match="Qwen3MoeForCausalLM chooses 2 of 8 experts in a way"):
        Routers.of(odd)


def _sorted(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, indices = logits.reshape(-1, EXPERTS).softmax(-1).sort(-1, descending=True)
    return logits, values[:, :ACTIVE], indices[:, :ACTIVE]
