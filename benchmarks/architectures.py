"""Which architectures train exactly: tiny random models of transformers' own classes, one thread, a minute.

    python -m benchmarks.architectures [NAME ...]

Every architecture is saved, loaded as the trainer loads it and given a row of samples, some of which begin
alike, longer and shorter than its sliding window. Log-probabilities and gradients are compared with those of
eager attention on each sample alone, and rows of shared prefixes with rows without; then it takes one step
of AdamW, and the names of a version for vLLM are compared with the checkpoint that transformers writes of it.
The embedded engine loads it too, with its own check. Without names the JSON and the table of `docs/models.md`
are written; `tests/unit/modeling/test_architectures.py` asks for the same.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import PreTrainedModel

from benchmarks._figures import RESULTS, command_line
from benchmarks.documents import stale
from pipelinerl.config.finetune import LoraConfig
from pipelinerl.engines.cpu.model import PackedModel, UnsupportedModel
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.vllm.weight_names import vllm_names
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.lora import add_adapters
from pipelinerl.modeling.model import distinct_parameters, load_model, persistent_buffers
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.prefixes import Prefixes, shared_with_previous
from pipelinerl.modeling.row import Row

_WORDS = {True: "yes", False: "no"}
LIMIT = 1e-5
"""Of the norm of what is compared with."""
VOCAB, TEMPERATURE, WINDOW, POSITIONS = 61, 0.7, 8, 64
SPREAD = 0.3
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
}
ROUTED: Mapping[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
HEAD: Mapping[str, Any] = {"head_dim": 4}
BOTH: Mapping[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True,
}


@dataclass(frozen=True)
class Architecture:
    """One class of transformers; `fields` are what its configuration gets beside SIZES."""

    family: str
    """What `Config` and `ForCausalLM` are appended to."""
    examples: str
    """Models of this architecture."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    """Of another name than the family's."""
    special: str = ""
    """What it has beside full attention, normalisation and MLPs."""

    def model(
        self, sizes: Mapping[str, Any] | None = None, spread: float = SPREAD, seed: int = 0
    ) -> PreTrainedModel:
        """Random, float32, its own eager attention; every weight differs from its neighbours, biases too.

        `sizes` are those of its fields that it has for another purpose than the table's.
        """
        torch.manual_seed(seed)
        kind = getattr(transformers, self.config or f"{self.family}Config")
        given = {**SIZES, "num_key_value_heads": 2, **self.fields}
        given |= {name: value for name, value in (sizes or {}).items() if name in given}
        default = kind()  # where this class ignores a size of experts, vLLM would build one that is shared
        unknown = {name for name in ("num_key_value_heads", *EXPERTS) if not hasattr(default, name)}
        config = kind(**{name: value for name, value in given.items() if name not in unknown})
        config._attn_implementation = "eager"  # of transformers' others not every one caps
        model: PreTrainedModel = getattr(transformers, f"{self.family}ForCausalLM")(config)
        with torch.no_grad():
            for one in model.parameters():
                one.copy_(
                    torch.randn_like(one) * spread if one.ndim > 1 else one + torch.randn_like(one) / 10
                )
        return model.eval()


ARCHITECTURES: Sequence[Architecture] = (
    Architecture("Llama", "Llama 3, SmolLM2, DeepSeek-R1-Distill"),
    Architecture("Mistral", "Mistral 7B v0.1", {"sliding_window": WINDOW}, special="windows"),
    Architecture("Ministral", "Ministral 8B", {**BOTH, **HEAD}, special="windows"),
    Architecture("Ministral3", "Ministral 3", HEAD),
    Architecture("Mixtral", "Mixtral 8x7B", {**EXPERTS, "sliding_window": None}, special="experts"),
    Architecture("Qwen2", "Qwen 2 and 2.5", BOTH, special="windows"),
    Architecture("Qwen2Moe", "Qwen1.5-MoE", EXPERTS, special="experts"),
    Architecture("Qwen3", "Qwen 3", HEAD),
    Architecture("Qwen3Moe", "Qwen3-30B-A3B", {**EXPERTS, **HEAD}, special="experts"),
    Architecture("Gemma", "Gemma 1", HEAD),
    Architecture(
        "Gemma2",
        "Gemma 2",
        {**BOTH, **HEAD, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        special="windows, caps",
    ),
    Architecture("Gemma3", "Gemma 3 1B", {**BOTH, **HEAD}, "Gemma3TextConfig", special="windows"),
    Architecture(
        "VaultGemma", "VaultGemma", {**BOTH, **HEAD, "attn_logit_softcapping": 2.0}, special="windows, caps"
    ),
    Architecture("Phi", "Phi 1.5 and 2", special="dropout"),
    Architecture("Phi3", "Phi 3 and 4", {"sliding_window": WINDOW}, special="windows, dropout"),
    Architecture(
        "Phimoe", "Phi-3.5-MoE", {**EXPERTS, "sliding_window": None}, "PhimoeConfig", special="experts"
    ),
    Architecture("GPTNeoX", "Pythia", {"hidden_dropout": 0.1}, special="dropout"),
    Architecture("StableLm", "StableLM 2", {"hidden_dropout": 0.1}, special="dropout"),
    Architecture("OPT", "OPT", {"word_embed_proj_dim": 16, "ffn_dim": 32}, special="dropout"),
    Architecture("Starcoder2", "Starcoder 2", {"sliding_window": WINDOW}, special="windows, dropout"),
    Architecture("Olmo", "OLMo 1"),
    Architecture("Olmo2", "OLMo 2"),
    Architecture("Olmo3", "Olmo 3", BOTH, special="windows"),
    Architecture("Olmoe", "OLMoE", EXPERTS, special="experts"),
    Architecture("Granite", "Granite 3", {"logits_scaling": 6.0}, special="scaled logits"),
    Architecture("GraniteMoe", "Granite 3 MoE", EXPERTS, special="experts"),
    Architecture("GraniteMoeShared", "MoE-7B-1B of IBM Research", EXPERTS, special="experts"),
    Architecture("Cohere", "Command R", {"logit_scale": 0.25}, special="scaled logits"),
    Architecture(
        "Cohere2", "Command R7B and A", {**BOTH, "logit_scale": 0.25}, special="windows, scaled logits"
    ),
    Architecture("SmolLM3", "SmolLM3", {"no_rope_layers": [1, 0]}),
    Architecture(
        "GptOss", "gpt-oss in bfloat16", {**BOTH, **HEAD, **EXPERTS}, special="windows, sinks, experts"
    ),
    Architecture("Exaone4", "EXAONE 4", {**BOTH, "sliding_window_pattern": 2}, special="windows"),
    Architecture("Helium", "Helium 1", HEAD),
    Architecture("Glm", "GLM 4 9B", HEAD),
    Architecture("Glm4", "GLM 4 0414", HEAD),
    Architecture("Nemotron", "Nemotron 4, Minitron"),
    Architecture("Persimmon", "Persimmon"),
    Architecture("Apertus", "Apertus"),
    Architecture("Arcee", "AFM 4.5B"),
    Architecture("Ernie4_5", "ERNIE 4.5 0.3B", HEAD),
    Architecture("HunYuanDenseV1", "Hunyuan dense", HEAD),
    Architecture("SeedOss", "Seed-OSS", HEAD),
    Architecture("Cwm", "CWM", {**BOTH, **HEAD, "bos_token_id": 1, "eos_token_id": 2}, special="windows"),
    Architecture("NanoChat", "nanochat", {"final_logit_softcapping": 3.0}, special="caps"),
    Architecture(
        "Dots1",
        "dots.llm1",
        {**EXPERTS, **BOTH, **ROUTED},
        special="windows, experts",
    ),
    Architecture(
        "DeepseekV3",
        "DeepSeek V3",
        {
            **EXPERTS,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 4,
            "v_head_dim": 6,
            "topk_method": "noaux_tc",  # the published models say so, transformers' class does not
            "scoring_func": "sigmoid",
        },
        special="latent attention, experts",
    ),
    Architecture(
        "Ernie4_5_Moe",
        "ERNIE 4.5 21B-A3B",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": 16,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
            "moe_layer_interval": 1,
        },
        special="experts",
    ),
    Architecture(
        "MiniMaxM2",
        "MiniMax M2",
        {
            **EXPERTS,
            **HEAD,
            "rotary_dim": 4,
            "use_qk_norm": True,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
        },
        special="experts",
    ),
    Architecture(
        "Laguna",
        "Laguna XS",
        {
            **EXPERTS,
            **HEAD,
            **BOTH,
            "mlp_layer_types": ["dense", "sparse"],
            "num_attention_heads_per_layer": [4, 4],
        },
        special="windows, experts",
    ),
    Architecture(
        "ExaoneMoe",
        "K-EXAONE",
        {
            **EXPERTS,
            **HEAD,
            **BOTH,
            "mlp_layer_types": ["dense", "sparse"],
            "first_k_dense_replace": 1,
            "num_shared_experts": 1,
        },
        special="windows, experts",
    ),
    Architecture("Glm4Moe", "GLM 4.5", {**EXPERTS, **HEAD, **ROUTED}, special="experts"),
    Architecture("HunYuanMoEV1", "Hunyuan A13B", {**EXPERTS, **HEAD}, special="experts"),
    Architecture("FlexOlmo", "FlexOlmo", EXPERTS, special="experts"),
    Architecture("Jais2", "Jais 2", HEAD),
    Architecture("DiffLlama", "DiffLlama", special="difference of two attentions"),
    # Its `multi_query` has one head of keys and values, whatever its configuration is told.
    Architecture("GPTBigCode", "StarCoder 1", {"num_key_value_heads": 1}, special="dropout"),
)
BY_NAME = {one.family: one for one in ARCHITECTURES}


@dataclass(frozen=True)
class Batch:
    """Samples one behind the other: two groups that begin alike, one sample for itself."""

    ids: np.ndarray
    positions: np.ndarray
    bounds: np.ndarray
    prefixes: Prefixes
    weights: torch.Tensor
    """Of each label in the loss."""

    @classmethod
    def random(cls, seed: int = 0) -> "Batch":
        rng = np.random.default_rng(seed)
        texts = []
        for start, ends in ((13, (4, 1, 9)), (2, (3, 17)), (0, (5,))):
            begin = rng.integers(0, VOCAB, start)
            texts += [np.concatenate([begin, rng.integers(0, VOCAB, end)]) for end in ends]
        texts.sort(key=lambda text: text.tolist())
        bounds = np.cumsum([0, *map(len, texts)])
        positions = np.concatenate([np.arange(len(text)) for text in texts])
        weights = torch.from_numpy(rng.random(len(positions) - len(texts))).float() + 0.5
        return cls(
            np.concatenate(texts), positions, bounds, Prefixes(bounds, shared_with_previous(texts)), weights
        )

    def alone(self, model: PreTrainedModel) -> torch.Tensor:
        """Log-probabilities of every token but the firsts, each sample in a forward of its own."""
        found = []
        for text in np.split(self.ids, self.bounds[1:-1]):
            ids = torch.from_numpy(text)
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float() / TEMPERATURE
            found.append(logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0])
        return torch.cat(found)

    def packed(self, policy: Policy, share: bool) -> torch.Tensor:
        """The same of one row."""
        row = Row.of(self.ids, self.positions, self.bounds, self.prefixes if share else None)
        at = np.flatnonzero(self.positions > 0)
        scores, _ = policy(
            torch.from_numpy(row.input_ids),
            torch.from_numpy(row.position_ids),
            row.segments("cpu", policy.window, policy.kernel),
            torch.from_numpy(row.computed(at - 1)),
            torch.from_numpy(self.ids[at]),
            TEMPERATURE,
        )
        return scores.logprobs


Gradients = dict[str, torch.Tensor]


def with_gradients(
    scores: torch.Tensor, batch: Batch, model: PreTrainedModel
) -> tuple[torch.Tensor, Gradients]:
    """The scores and the gradients of their weighted sum."""
    model.zero_grad()
    (scores * batch.weights).sum().backward()
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    return scores.detach(), found


def distance(found: torch.Tensor, expected: torch.Tensor, least: float = 0.0) -> float:
    """Norm of the difference, relative to that of `expected` or to `least` where that is more."""
    return float((found - expected).norm()) / max(float(expected.norm()), least, 1e-30)


def gradient_distance(found: Gradients, expected: Gradients) -> float:
    """The largest of any parameter; one with less than a hundredth of the whole is measured by that."""
    if missing := found.keys() ^ expected.keys():
        raise AssertionError(f"gradients of only one side: {', '.join(sorted(missing))}")
    whole = float(torch.stack([one.norm() for one in expected.values()]).norm())
    return max(distance(found[name], one, whole / 100) for name, one in expected.items())


def steps(policy: Policy, batch: Batch) -> bool:
    """Whether a step of AdamW lowers the loss, moves what has a gradient and leaves finite weights."""
    before = {name: one.detach().clone() for name, one in policy.named_parameters()}
    optimiser = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        loss = -(batch.packed(policy, True) * batch.weights).sum()
        losses.append(float(loss.detach()))
        if len(losses) == 1:
            loss.backward()
            optimiser.step()
    after = dict(policy.named_parameters())
    moved = all(
        not torch.equal(before[name], one)
        for name, one in after.items()
        if one.grad is not None and one.grad.any()
    )
    finite = all(bool(torch.isfinite(one).all()) for one in after.values())
    return moved and finite and losses[1] < losses[0]


def adapters(folder: Path, batch: Batch) -> bool:
    """Whether a model with random adapters scores as the model of the weights that it would publish."""
    model, merged = load_model(folder), load_model(folder)
    add_adapters(model, LoraConfig(enabled=True, r=2))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if is_adapter(name):
                one.normal_(0, 0.1)
        sent = dict(distinct_parameters(model))
        targets = dict(distinct_parameters(merged))
        for name, tensor in targets.items():
            tensor.copy_(sent[name])
        scores = [batch.packed(Policy(one), True) for one in (model, merged)]
        untouched = batch.packed(Policy(load_model(folder)), True)
    return distance(*scores) <= LIMIT < distance(scores[0], untouched) and sent.keys() == targets.keys()


def names(model: PreTrainedModel, folder: Path) -> str:
    """How a version's tensors for vLLM are named beside the checkpoint: as saved, or with experts stacked."""
    model.save_pretrained(folder)
    saved = load_file(folder / "model.safetensors")
    sent = dict(vllm_names(model.config.model_type, distinct_parameters(model)))
    buffers = {name.rpartition(".")[2] for name, _ in persistent_buffers(model)}
    kept = {name for name in saved if name.rpartition(".")[2] in buffers}
    here, there = sent.keys() - saved.keys(), saved.keys() - sent.keys() - kept
    wrong = [name for name in sent.keys() & saved.keys() if not torch.equal(sent[name], saved[name])]
    if wrong or any("experts" not in name for name in here | there):
        return f"differ: {', '.join(sorted(wrong or here | there)[:3])}"
    if sum(sent[name].numel() for name in here) != sum(saved[name].numel() for name in there):
        return "experts differ"
    return "experts of a layer together" if here else "as saved"


def served(folder: Path) -> bool:
    """Whether the embedded engine takes it, by its own check at start."""
    settings = EngineSettings(model=folder, max_model_len=POSITIONS, max_num_seqs=3)
    try:
        PackedModel(settings)
    except UnsupportedModel:
        return False
    return True


def measured(one: Architecture) -> dict[str, Any]:
    """One row of the table; relative differences."""
    batch, own = Batch.random(), one.model()
    expected, wanted = with_gradients(batch.alone(own), batch, own)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own.save_pretrained(folder)
        model = load_model(folder)
        policy = Policy(model)
        plain, gradients = with_gradients(batch.packed(policy, False), batch, model)
        shared, others = with_gradients(batch.packed(policy, True), batch, model)
        return {
            "name": one.family,
            "examples": one.examples,
            "special": one.special,
            "outputs": distance(plain, expected),
            "gradients": gradient_distance(gradients, wanted),
            "shared": max(distance(shared, plain), gradient_distance(others, gradients)),
            "engine": served(folder),
            "adapters": adapters(folder, batch),
            "step": steps(policy, batch),
            "names": names(model, folder / "after"),
        }


def problems(row: Mapping[str, Any]) -> Iterator[str]:
    """What does not hold of a row."""
    for part in ("outputs", "gradients", "shared"):
        if not row[part] <= LIMIT:
            yield f"{row['name']}: {part} differ by {row[part]:.2g} of their norm, {LIMIT:g} is allowed"
    if not row["step"]:
        yield f"{row['name']}: a step does not lower the loss, or leaves weights that are not finite"
    if not row["adapters"]:
        yield f"{row['name']}: adapters score otherwise than the weights that they are merged into"
    if row["names"] not in ("as saved", "experts of a layer together"):
        yield f"{row['name']}: names of a version {row['names']}"


def main() -> int:
    arguments = command_line(__doc__)
    torch.set_num_threads(1)
    chosen = [BY_NAME[name] for name in arguments.words] or ARCHITECTURES
    rows, failed = [], []
    for one in chosen:
        row = measured(one)
        failed += list(problems(row))
        rows.append(row)
        print(
            " | ".join(f"{part:.1g}" if isinstance(part, float) else str(part) for part in row.values()),
            flush=True,
        )
    print("\n".join(failed))
    if not arguments.words:
        said = [{key: _WORDS.get(value, value) for key, value in row.items()} for row in rows]
        (RESULTS / "architectures.json").write_text(json.dumps({"rows": said}, indent=1) + "\n")
        stale(write=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
