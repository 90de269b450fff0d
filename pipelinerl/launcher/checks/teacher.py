"""Teachers: whether they are there, score the policy's tokens, and have an effect on its loss."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from pipelinerl.base.http import CallFailed, Connection
from pipelinerl.base.hub import model_folder, of_hub
from pipelinerl.base.tokenizing import load_tokenizer
from pipelinerl.config.roles import is_address
from pipelinerl.config.tree import Config
from pipelinerl.engines.requests import scoring_body
from pipelinerl.finetune.rl.losses import declared
from pipelinerl.launcher.checks.data import TOKENIZER_FILES, WEIGHTS, fetched_later, named, unusable_files
from pipelinerl.launcher.checks.same_ids import other_tokens, other_vocabulary, posting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SAME = "give a teacher with the policy's tokenizer"


def check(cfg: Config, dry_run: bool) -> Iterator[str]:
    """Problems with the teachers of this run; a dry run may be made where they are not."""
    if not cfg.teacher.places or "preprocessor" not in cfg.debug.roles:
        return
    keys = {place: _key(cfg, name) for name, place in cfg.teacher.places.items()}
    found = [*_unread(cfg), *(line for place, key in keys.items() for line in _absent(key, place, dry_run))]
    yield from found
    if found or dry_run:
        return
    try:
        policy = load_tokenizer(cfg.model_path)
    except Exception as error:
        yield f"teacher: the tokenizer of model_path={cfg.model_path} cannot be read ({_line(error)})"
        return
    for place, key in keys.items():
        problem = _engine(place, policy) if is_address(place) else _model(place, policy)
        if problem is not None:
            yield f"{key}={place}: {problem}"


def _key(cfg: Config, name: str) -> str:
    """The key that gave a teacher its place."""
    kind, _, of = name.partition("/")
    default = "teacher.model_path" if cfg.teacher.url is None else "teacher.url"
    return f"teacher.by_{kind}.{of}" if of else default


def _unread(cfg: Config) -> Iterator[str]:
    """Settings under which the trainer would not read what a teacher says, or read it wrongly."""
    rl, teacher = cfg.finetune.rl, cfg.teacher
    if teacher.model_path is not None and teacher.url is not None:
        yield f"teacher.url={teacher.url}: teacher.model_path={teacher.model_path} names one as well; set one"
    if not declared(rl.policy_loss).compares:
        yield f"finetune.rl.policy_loss={rl.policy_loss}: a teacher has no effect on this loss; set another"
    elif "use_advantages" not in declared(rl.policy_loss).ignores and not rl.use_advantages:
        yield "finetune.rl.use_advantages=false: a teacher has no effect on rewards; set use_advantages=true"
    if cfg.finetune.has_value_head:
        yield (
            f"finetune.model_class={cfg.finetune.model_class}: the advantage is reward minus value, so a "
            "teacher has no effect; leave the teacher out"
        )
    if rl.filter_zero_advantage_groups:
        yield (
            "finetune.rl.filter_zero_advantage_groups=true: drops groups of equal rewards, which a "
            "teacher can still score; set false"
        )
    if teacher.urls and rl.temperature != 1:
        yield (
            f"teacher: {teacher.urls[0]} scores at temperature 1, the policy samples at "
            f"{rl.temperature:g}; set llm.parameters.temperature=1, or give the teacher's folder"
        )


def _absent(key: str, place: str, dry_run: bool) -> Iterator[str]:
    """What is missing of a teacher's model, or of its address; nothing is asked over a network."""
    folder = model_folder(place)
    if is_address(place) or (folder is not None and fetched_later(place, folder, dry_run)):
        return
    if key == "teacher.url":
        yield f"{key}={place}: no address; write http://HOST:PORT"
    elif folder is not None:
        config = (folder / "config.json").is_file()
        tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
        weights = any(any(folder.glob(pattern)) for pattern in WEIGHTS)
        for what, there in (("config.json", config), ("tokenizer.json", tokenizer), ("weights", weights)):
            if not there:
                yield f"{key}={place}: no {what} in it; give a model folder in Hugging Face format"
                return
        yield from (line.replace("model_path", key, 1) for line in named(place, unusable_files(folder)))
    elif not of_hub(place):
        yield f"{key}={place}: no such folder; give a model folder, a hub name (owner/model) or an address"


def _model(path: str, policy: "PreTrainedTokenizerFast") -> str | None:
    """Why a model cannot score the policy's ids."""
    try:
        theirs = load_tokenizer(path).get_vocab()
    except Exception as error:
        return f"its tokenizer cannot be read ({_line(error)}); {SAME}"
    ours = policy.get_vocab()
    if (other := other_vocabulary(ours, theirs)) is not None:
        return f"{other}; {SAME}"
    folder = model_folder(path)
    rows = (
        None
        if folder is None
        else json.loads((folder / "config.json").read_text(encoding="utf-8")).get("vocab_size")
    )
    if isinstance(rows, int) and rows <= max(ours.values()):
        return f"it has {rows} ids, the policy's tokenizer goes to {max(ours.values())}; {SAME}"
    return None


def _engine(url: str, policy: "PreTrainedTokenizerFast") -> str | None:
    """Why an engine cannot score the policy's ids: it says nothing, knows other ids, or scores no prompt."""
    with closing(Connection(url)) as connection:
        asked, route = posting(connection), "/tokenize"
        try:
            if (other := other_tokens(asked, policy)) is not None:
                return f"{other}; {SAME}"
            route = "/inference/v1/generate"
            scores = asked(route, scoring_body(np.arange(8, dtype=np.int32))).get("prompt_logprobs")
        except CallFailed as error:
            if error.status == 404:
                return f"has no {route}; serve the teacher with vLLM 0.26 or later"
            said = "does not answer" if error.status is None else f"refuses {route}"
            return f"{said} ({_line(error)}); serve the teacher with vLLM before the run starts"
        except (ValueError, AttributeError) as error:
            return f"its answer to {route} cannot be read ({_line(error)}); serve the teacher with vLLM"
    return None if scores else "scores no prompts; serve the teacher with vLLM 0.26 or later"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
