"""From a configuration to a policy that can be trained: weights, adapters, value head, shards, optimizer.

The trainer's loop calls `build_learner` once, at a start or a resume.
"""

import hashlib
import json
import logging
import os
import socket
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from pipelinerl.base.hub import with_files
from pipelinerl.base.logs import REMARK
from pipelinerl.config import Config
from pipelinerl.config.finetune import RLConfig, Sharding
from pipelinerl.engines.kind import eight_bits
from pipelinerl.engines.wire import parameter_checksum
from pipelinerl.finetune.optimiser import build_optimiser, build_scheduler
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.step import Learner
from pipelinerl.modeling.lora import FOLDER as ADAPTER_FOLDER
from pipelinerl.modeling.lora import add_adapters, load_adapters
from pipelinerl.modeling.masters import MasterWeights
from pipelinerl.modeling.model import load_model
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.routing import Routers
from pipelinerl.modeling.seq_parallel import check_model
from pipelinerl.modeling.sharding import shard_policy
from pipelinerl.modeling.value_head import FILE as VALUE_HEAD
from pipelinerl.modeling.value_head import build_value_head, load_value_head
from pipelinerl.weights.transports.base import adapters_alone

log = logging.getLogger(__name__)


def build_learner(cfg: Config, ranks: Ranks, model_path: str | Path, resumes: bool = False) -> Learner:
    """Load the policy and what changes it; `model_path` is a folder or, if it `resumes`, the checkpoint's.

    Adapters go onto the model that the configuration names, a checkpoint brings only themselves.
    """
    finetune, derived = cfg.finetune, cfg.derived
    compiled = derived.compile is True
    # Sharding moves one layer after the other to the card, which could not hold all of them in float32.
    on_card = cfg.trainer_on_gpu and sharding_of(cfg, ranks) is None
    model = load_model(
        cfg.policy_path if finetune.lora.enabled else model_path,
        _device(cfg, ranks) if on_card else torch.device("cpu"),
        finetune.trust_remote_code,
        gradient_checkpointing=derived.compiled_checkpointing if compiled else derived.gradient_checkpointing,
        reentrant_checkpointing=finetune.reentrant_checkpointing,
        compile=compiled,
        flash_attention=finetune.use_flash_attention,
    )
    if ranks.row is not None:
        check_model(model, ranks.row.count)
    if finetune.lora.enabled:
        add_adapters(model, finetune.lora)
        # The model of another run has adapters beside weights that contain them: they would count twice.
        if resumes and (saved := Path(model_path) / ADAPTER_FOLDER).is_dir():
            load_adapters(model, saved)
    value_head = build_value_head(model) if finetune.has_value_head else None
    if value_head is not None and not load_value_head(value_head, with_files(str(model_path), [VALUE_HEAD])):
        log.info("%s has no value head; a new one starts at 0", model_path)
    if ranks.count > 1:
        _check_same(model, ranks, f"model_path={cfg.policy_path if finetune.lora.enabled else model_path}")
    return learner_of(model, cfg, ranks, value_head)


COMPARED = 65_536
"""Elements of a tensor that ranks compare: another version differs nearly everywhere, and all take long."""


def _check_same(model: PreTrainedModel, ranks: Ranks, named: str) -> None:
    """Raises ValueError, on all ranks, if one has loaded another model than the first.

    Ranks sum their gradients and never compare weights, so they would train different models.
    """
    said = model.config.to_json_string(use_diff=False)
    # Where a host keeps its copy is its own affair.
    config = json.loads(said, object_hook=lambda found: {**found, "_name_or_path": None})
    sums = {}
    for name, one in model.named_parameters():
        some = one.detach().flatten()[:: max(1, one.numel() // COMPARED)].cpu().contiguous()
        sums[name] = parameter_checksum(some.view(torch.uint8).numpy().data)
    digest = hashlib.sha256(json.dumps([config, sums], sort_keys=True).encode()).hexdigest()
    (first, expected), *others = ranks.gather((socket.gethostname(), digest))
    for index, (host, found) in enumerate(others, 1):
        if found != expected:
            raise ValueError(
                f"{named}: rank {index} on {host} has loaded another model than rank 0 on {first}; "
                "every host needs the same files there"
            )


def learner_of(
    model: PreTrainedModel, cfg: Config, ranks: Ranks, value_head: nn.Linear | None = None
) -> Learner:
    """Sharding, optimizer, scheduler (horizon `max_train_steps`) and compute type of a float32 policy."""
    finetune = cfg.finetune
    policy = Policy(model, value_head)
    # Ranks that compute a row together choose freely, each for its slice.
    routers = _routers(model, finetune.rl) if finetune.seq_parallel == 1 else None
    sharding = sharding_of(cfg, ranks)
    on_host = sharding is not None and sharding.offload
    if sharding is not None:
        shard_policy(policy, sharding, finetune.load_as_bf16)
        log.info("policy sharded over %d ranks: %s", ranks.count, sharding)
    if on_host and cfg.trainer_on_gpu:  # the optimizer computes on the host, while the card waits
        cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(cores // 2, torch.get_num_threads()))
    # The optimizer comes after sharding: it must hold the shards, not the whole parameters.
    optimiser = build_optimiser(policy, finetune, on_host)
    scheduler = build_scheduler(optimiser, finetune)
    masters = MasterWeights(model) if finetune.load_as_bf16 and sharding is None else None
    return Learner(
        policy=policy,
        optimiser=optimiser,
        scheduler=scheduler,
        rl=finetune.rl,
        ranks=ranks,
        masters=masters,
        gradient_clipping_threshold=finetune.gradient_clipping_threshold,
        bfloat16=finetune.load_as_bf16,
        whole_on_host=cfg.derived_ is not None and cfg.derived_.whole_on_host,
        computes_on=_device(cfg, ranks) if on_host else None,
        routers=routers,
        adapters_alone=adapters_alone(cfg),
        eight_bits=eight_bits(cfg),
    )


def _routers(model: PreTrainedModel, rl: RLConfig) -> Routers | None:
    """The routers of a mixture of experts. Raises ValueError where a key asks for what they cannot do."""
    try:
        routers = Routers.of(model)
    except ValueError as error:
        if rl.routing == "replay" or rl.router_aux_loss_coef:
            key = "routing=replay" if rl.routing == "replay" else "router_aux_loss_coef"
            raise ValueError(f"finetune.rl.{key}: {error}; leave the key out") from None
        log.warning("%s: the trainer chooses its experts by itself", error, extra=REMARK)
        return None
    if routers is not None and rl.router_aux_loss_coef:
        if not routers.may_balance:
            raise ValueError(
                f"finetune.rl.router_aux_loss_coef={rl.router_aux_loss_coef:g}: routers of "
                f"{type(model).__name__} choose by scores that are no probabilities; set 0"
            )
        routers.keep_scores(True)
    return routers


def sharding_of(cfg: Config, ranks: Ranks) -> Sharding | None:
    """How the policy is shared by these ranks; None where each holds all of it, on its device."""
    sharding = cfg.sharding
    return sharding if sharding is not None and (ranks.count > 1 or sharding.offload) else None


def _device(cfg: Config, ranks: Ranks) -> torch.device:
    """Where this rank computes."""
    return torch.device("cuda", ranks.local_index) if cfg.trainer_on_gpu else torch.device("cpu")
