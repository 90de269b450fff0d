"""What a process makes once per configuration tree."""

from omegaconf import OmegaConf

from pipelinerl.utils import PerTree


def test_a_value_is_made_once_per_tree() -> None:
    made = []

    def make(cfg):
        made.append(cfg)
        return len(made)

    held, one, equal = PerTree(make), OmegaConf.create({"a": 1}), OmegaConf.create({"a": 1})
    assert [held.of(one), held.of(one), held.of(equal), held.of(equal)] == [1, 1, 2, 2]
    assert made[0] is one and made[1] is equal
