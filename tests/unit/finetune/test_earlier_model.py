"""What a run leaves is a model that the next one starts from: with those weights only, and a tokenizer."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

pytest.importorskip("peft")

from pipelinerl.config.finetune import LoraConfig
from pipelinerl.finetune.build import build_learner
from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.modeling.value_head import save_value_head
from tests.support.builders import VALUE_HEAD, trainer_config, write_steps
from tests.support.policy import tiny_model
from tests.support.tiny_model import hub_snapshot, save_model
from tests.support.training import Deadly, Killed, saved, train

RANK = 4
LORA = LoraConfig(enabled=True, r=RANK, alpha=8.0)


LLAMA_3 = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
"""As in the `config.json` that Llama 3.1 is published with."""


def test_a_checkpoint_has_the_keys_of_its_model_also_if_they_have_new_names(tmp_path: Path) -> None:
    """transformers before 5 reads none of the names that later ones save, and takes other rotations."""
    trainer_config(tmp_path, tiny_model())
    path, checkpoint = tmp_path / "model/config.json", tmp_path / "finetune/current"
    own = json.loads(path.read_text())
    del own["rope_parameters"]
    path.write_text(json.dumps(own | LLAMA_3 | {"torch_dtype": "bfloat16"}))
    with pytest.raises(Killed):
        train(tmp_path, Deadly(18))
    train(tmp_path)  # from the checkpoint of step 2
    found = json.loads((checkpoint / "config.json").read_text())
    assert {key: found[key] for key in LLAMA_3} == LLAMA_3
    assert found["dtype"] == "float32" and "torch_dtype" not in found
    used = AutoConfig.from_pretrained(path.parent).rope_parameters
    assert used["rope_theta"] == 500000.0 and used["rope_type"] == "llama3"
    assert AutoConfig.from_pretrained(checkpoint).rope_parameters == found["rope_parameters"] == used


@pytest.mark.parametrize("rank", [RANK, 2])
def test_adapters_of_an_earlier_run_are_in_its_weights_and_are_not_applied_again(
    tmp_path: Path, rank: int
) -> None:
    """Adapters of any rank, since the old ones are not read."""
    first, second = tmp_path / "first", tmp_path / "second"
    train(first, lora=LORA)
    model = first / "finetune/current"
    assert (model / "adapter").is_dir()
    write_steps(second, 4, 6)
    cfg = trainer_config(second, tiny_model(), lora=LoraConfig(enabled=True, r=rank, alpha=8.0))
    one = Trainer(cfg.model_copy(update={"model_path": str(model)}), Ranks())
    learned, published = saved(first), dict(distinct_parameters(one.learner.model))
    original = dict(tiny_model().named_parameters())
    name = "model.layers.0.self_attn.q_proj.weight"
    assert float((learned[name] - original[name]).detach().abs().max()) > 1e-3
    assert all(torch.equal(published[name], tensor) for name, tensor in learned.items())


def test_a_model_from_a_hub_s_name_is_saved_with_the_hub_s_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", "somebody/small")
    written = {file.name: file.read_bytes() for file in save_model(snapshot).iterdir()}
    assert {"tokenizer.json", "chat_template.jinja"} <= set(written)
    tiny_model().save_pretrained(snapshot)
    run = tmp_path / "run"
    write_steps(run, 4, 6)
    cfg = trainer_config(run, tiny_model())
    shutil.rmtree(run / "model")
    Trainer(cfg.model_copy(update={"model_path": "somebody/small"}), Ranks()).run()
    current = run / "finetune/current"
    assert {name: (current / name).read_bytes() for name in written} == written


def test_a_value_head_beside_a_hub_s_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", "somebody/valued")
    tiny_model().save_pretrained(snapshot)
    head = {"weight": torch.full((1, tiny_model().config.hidden_size), 0.25), "bias": torch.tensor([0.5])}
    save_value_head(head, snapshot)
    cfg = trainer_config(tmp_path / "run", tiny_model(), model_class=VALUE_HEAD)
    learner = build_learner(cfg, Ranks(), "somebody/valued")
    loaded = learner.policy.value_head
    assert loaded is not None and all(
        torch.equal(loaded.state_dict()[name], one) for name, one in head.items()
    )
