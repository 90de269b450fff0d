"""One of two trainer ranks; started by test_ranks through torch's launcher: `two_ranks.py OUTPUT_DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import join_ranks
from tests.unit.finetune.builders import settings
from tests.unit.finetune.conftest import tiny_model

if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = join_ranks(cpu=True)
    assert ranks.count == 2
    trainer = Trainer(settings(Path(sys.argv[1]), tiny_model()), ranks)
    trainer.run()
    ranks.close()
