"""One of two trainer ranks; started by test_ranks like torch's launcher does: `two_ranks.py OUTPUT_DIR JSON`.

JSON holds further fields of the settings; `sharding` and `lora` are objects of theirs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import join_ranks
from pipelinerl.modeling.options import LoraSettings, Sharding
from tests.support.builders import settings
from tests.support.policy import tiny_model
from tests.support.recorder import Recorder

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, fields = Path(sys.argv[1]), json.loads(sys.argv[2])
    ranks = join_ranks(cpu=fields.get("device") != "cuda")
    assert ranks.count == 2
    for name, kind in (("sharding", Sharding), ("lora", LoraSettings)):
        if fields.get(name) is not None:
            fields[name] = kind(**fields[name])
    ends: list[int] = fields.pop("ends", [4])
    for end in ends:
        chosen: dict[str, Any] = fields | {"last_step": end}
        trainer = Trainer(settings(folder, tiny_model(), **chosen), ranks)
        trainer._broadcaster = Recorder(trainer.learner, folder)
        trainer.run()
    ranks.close()
