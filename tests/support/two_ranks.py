"""One of several trainer ranks, started by test_ranks like torch's launcher does.

`two_ranks.py OUTPUT_DIR JSON`: JSON holds further fields of `trainer_config`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import join_ranks
from tests.support.builders import trainer_config
from tests.support.policy import tiny_model
from tests.support.recorder import Recorder

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, fields = Path(sys.argv[1]), json.loads(sys.argv[2])
    offload = fields.get("fsdp", {}).get("cpu_offload", False)
    on_cpu = fields.get("hardware", {}).get("kind") != "gpu"
    ranks = join_ranks(on_cpu, offload, fields.get("seq_parallel", 1))
    found, told = (ranks.count, ranks.index, ranks.local_index), ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    assert found == tuple(int(os.environ[name]) for name in told)
    ends: list[int] = fields.pop("ends", [4])
    for end in ends:
        chosen: dict[str, Any] = fields | {"interrupt_train_steps": end}
        trainer = Trainer(trainer_config(folder, tiny_model(), **chosen), ranks)
        drawn = [ids.tolist() for ids in ranks.gather(trainer.learner.probe_ids())]
        assert all(one == drawn[0] and len(one) == 4 for one in drawn)
        trainer._broadcaster = Recorder(trainer.learner, folder)
        trainer.run()
    ranks.close()
