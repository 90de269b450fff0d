"""How several ranks of the trainer are started: as placed, whatever the user told accelerate elsewhere."""

import shlex
from pathlib import Path

import pytest
import torch
from accelerate.commands import launch
from accelerate.commands.config import config_args
from accelerate.utils import prepare_multi_gpu_env

from tests.unit.launcher.conftest import ON_GPUS, Placed

OF_THE_USER = """
distributed_type: {kind}
gpu_ids: 0,1
mixed_precision: fp16
num_processes: 2
"""


@pytest.mark.parametrize("kind", ["MULTI_GPU", "NO", "FSDP", "DEEPSPEED"])
def test_the_user_s_own_file_for_accelerate_decides_nothing(
    placed: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    placed(*ON_GPUS, "hardware.devices=8")
    argv = shlex.split((tmp_path / "run/finetune/start.sh").read_text().splitlines()[-1])
    of_the_user = tmp_path / "default_config.yaml"
    of_the_user.write_text(OF_THE_USER.format(kind=kind))
    for module in (launch, config_args):
        monkeypatch.setattr(module, "default_config_file", str(of_the_user))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")

    parser = launch.launch_command_parser()
    args, _, _ = launch._validate_launch_command(
        parser.parse_args(argv[argv.index("accelerate.commands.launch") + 1 :])
    )
    assert args.multi_gpu and not args.use_fsdp and not args.use_deepspeed
    assert (args.num_processes, args.num_machines, args.mixed_precision) == (4, 1, "no")
    assert prepare_multi_gpu_env(args).get("CUDA_VISIBLE_DEVICES", "4,5,6,7") == "4,5,6,7"


def test_a_file_that_the_run_names_is_read_instead(placed: Placed, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("distributed_type: MULTI_GPU\n")
    placed(*ON_GPUS, "hardware.devices=8", f"accelerate_config={mine}")
    assert f"--config_file {mine} -m" in (tmp_path / "run/finetune/start.sh").read_text()
