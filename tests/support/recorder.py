"""A broadcaster that writes down what an engine would receive."""

from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from pipelinerl.finetune.broadcast import Announce, Broadcaster
from pipelinerl.finetune.step import Learner
from pipelinerl.weights.parity import probe_ids


class Recorder(Broadcaster):
    """Saves the last published weights as `published.safetensors`, the probe's scores as `scores.npy`."""

    def __init__(self, learner: Learner, folder: Path) -> None:
        self._learner, self._folder = learner, folder
        # Random ids: what the policy draws depends on where a run was resumed.
        learner.probe = probe_ids(int(learner.model.config.get_text_config(decoder=True).vocab_size))

    def publish(self, version: int, announce: Announce) -> dict[str, float]:
        tensors = {name: tensor.clone() for name, tensor in self._learner.weights()}
        assert sum(tensor.numel() for tensor in tensors.values()) == self._learner.elements
        save_file(tensors, self._folder / "published.safetensors")
        np.save(self._folder / "scores.npy", self._learner.score_rows(self._learner.probe_ids()))
        return super().publish(version, announce)
