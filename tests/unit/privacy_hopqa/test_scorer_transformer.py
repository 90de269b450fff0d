"""Transformers models from a local folder as classifiers of query logs."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from domains.privacy_hopqa.scorer.protocol import ClassifierError, Example
from domains.privacy_hopqa.scorer.rules import Fact
from domains.privacy_hopqa.scorer.transformer import TransformerClassifier
from tests.support.tiny_model import build_tokenizer

FACT = Fact("What share of stores passed the audit?", "15%")
EXAMPLES = [
    Example("a", "Harlow Foods", ("audit",), (FACT,)),
    Example("b", "Harlow Foods", ("audit stores 15%", "which region reports 15% coverage"), (FACT,)),
    Example("c", "Harlow Foods", ("weather",), (FACT, FACT)),
]
BRIEF = "$company|$queries|$facts"


def folder(tmp_path, kind, labels=None, positions=1024):
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["Yes", "No"])
    tokenizer.save_pretrained(tmp_path)
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.eos_token_id,
        **({"id2label": labels, "label2id": {v: k for k, v in labels.items()}} if labels else {}),
    )
    model = kind(shape)
    for parameter in model.parameters():
        parameter.data.mul_(8)  # far from 0, so that probabilities differ
    model.save_pretrained(tmp_path)
    (tmp_path / "brief.md").write_text(BRIEF)
    return tmp_path


def classifier(path, batch_size=8):
    return TransformerClassifier(path, path / "brief.md", batch_size, "cpu")


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        (Qwen3ForCausalLM, None),
        (Qwen3ForSequenceClassification, {0: "no", 1: "yes"}),
        (Qwen3ForSequenceClassification, {0: "yes", 1: "no"}),
        (Qwen3ForSequenceClassification, {0: "score"}),
    ],
    ids=["causal", "no-yes", "yes-no", "one-logit"],
)
def test_scores_are_probabilities_and_do_not_depend_on_the_batch(tmp_path, kind, labels):
    path = folder(tmp_path, kind, labels)
    together = classifier(path).score(EXAMPLES)
    alone = [classifier(path, 1).score([example])[0] for example in EXAMPLES]
    assert all(0.0 <= value <= 1.0 for value in together)
    assert len(set(together)) == 3
    assert together == pytest.approx(alone, abs=1e-5)


def test_the_positive_label_is_the_one_called_yes(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    second = classifier(folder(tmp_path / "a", Qwen3ForSequenceClassification, {0: "no", 1: "yes"}))
    first = classifier(folder(tmp_path / "b", Qwen3ForSequenceClassification, {0: "yes", 1: "no"}))
    assert second.score(EXAMPLES) == pytest.approx([1 - value for value in first.score(EXAMPLES)])
    assert first.version != second.version
    assert first.name == "transformers:b"


def test_a_prompt_longer_than_the_model_is_an_error_not_a_cut(tmp_path):
    with pytest.raises(ClassifierError, match=r"a prompt has \d+ tokens; transformers:.* takes 64"):
        classifier(folder(tmp_path, Qwen3ForCausalLM, positions=64)).score(EXAMPLES)


def test_folders_and_prompts_that_cannot_be_used_are_one_line(tmp_path):
    path = folder(tmp_path, Qwen3ForSequenceClassification, {0: "a", 1: "b", 2: "c"})
    with pytest.raises(ValueError, match="3 labels and none is called yes"):
        classifier(path)
    (path / "brief.md").write_text("$company only")
    with pytest.raises(ValueError, match="exactly the placeholders"):
        classifier(path)
    with pytest.raises(ValueError, match="holds no config"):
        TransformerClassifier(path / "absent")
