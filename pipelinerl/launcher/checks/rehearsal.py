"""The problems of a run, loaded before anything starts, and the prompts that its domain can tell of them.

A loader is code of a domain: it runs in a process of its own, which is this file, within a deadline.
"""

import contextlib
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from jinja2 import TemplateError, TemplateSyntaxError
from omegaconf import DictConfig, OmegaConf

from pipelinerl.actor.problems import NoProblems, Problem, load_problems, payload
from pipelinerl.base.errors import ConfigError
from pipelinerl.base.guard import ask
from pipelinerl.base.hub import model_folder
from pipelinerl.base.tokenizing import encode, load_tokenizer, render_chat
from pipelinerl.config.files import as_yaml, typed
from pipelinerl.config.tree import Config
from pipelinerl.domain import Domain, load_domain
from pipelinerl.domain_sampling import DomainWeightedSampler
from pipelinerl.engines.kind import engine_kind
from pipelinerl.run_state.shared_problems import shared

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

START_DEADLINE_S, VALIDATE_DEADLINE_S = 10.0, 300.0
"""A start goes on without having seen the problems; a validation has nothing else to do."""
PROMPTS_S = 5.0
"""For rendering prompts; of many problems the first ones are looked at."""
COMPARED = 20_000
"""Most training problems that test problems are compared with here; the actor compares all of them."""
LAST_LINE = 200
"""Characters of what a loader printed last that are shown."""
UNREACHED = (ConnectionError, TimeoutError)
"""Of a loader that asks a server which the run may be about to start."""


@dataclass
class Looked:
    """What was found; without problems, `said` is for the table of choices."""

    problems: list[str] = field(default_factory=list)
    said: str = ""
    loaded: bool = False
    """Whether the loader gave problems, so that what is wrong is not that it has no data yet."""
    empty: bool = False
    """Whether it gave none without an error; why may stand in what it printed."""
    remarks: list[str] = field(default_factory=list)
    """What loaders of bundled domains say of their data, such as that they are generated."""


def look(tree: DictConfig, deadline_s: float) -> Looked:
    """Load the problems of a resolved or resolvable tree, elsewhere; nothing where it has no rollouts."""
    cfg = typed(tree)
    if "actor" not in cfg.debug.roles:
        return Looked()
    given = as_yaml(OmegaConf.to_container(tree, resolve=True))
    try:
        child = ask([sys.executable, "-m", __name__], given, deadline_s)
    except subprocess.TimeoutExpired:
        return Looked(said=f"not looked at: loading them takes more than {deadline_s:.0f} s")
    if child.returncode != 0 or not child.stdout.strip():  # a loader may exit with 0 too
        last = _one_line(child.stderr)[-LAST_LINE:]
        return Looked([f"{_loader(cfg)}: loading ended its process with status {child.returncode}: {last}"])
    found = Looked(**json.loads(child.stdout.splitlines()[-1]))
    if found.empty and (printed := [line for line in child.stderr.splitlines() if line.strip()]):
        found.problems[-1] += f"; the last line of the loader: {printed[-1].strip()[:LAST_LINE]}"
    return found


def _loader(cfg: Config) -> str:
    return f"dataset_loader={cfg.dataset_loader}"


def looked_at(tree: DictConfig) -> Looked:
    """The same in this process."""
    cfg = typed(tree)
    remarks: list[str] = []
    try:
        domain = load_domain(cfg.domain_hooks)
        with _heard(remarks):
            train, test = load_problems(cfg)
        _carried(chain(train, test))
    except UNREACHED as error:
        return Looked(said=f"not looked at: {error}")
    except ConfigError as error:
        return Looked(error.problems)
    except NoProblems as error:
        return Looked([f"{_loader(cfg)}: {error}"], empty=True)
    except Exception as error:  # whatever a loader does
        named = isinstance(error, ValueError | OSError)
        said = str(error).removeprefix(_loader(cfg)).lstrip(": ")
        return Looked([f"{_loader(cfg)}: {'' if named else f'{type(error).__name__}: '}{said}"])
    found = _played(tree, cfg, domain, train, test)
    return replace(found, loaded=True, remarks=remarks)


@contextlib.contextmanager
def _heard(said: list[str]) -> Iterator[None]:
    """Keeps what bundled domains log meanwhile, each line once."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (line := record.getMessage()) not in said:
                said.append(line)

    logger, handler = logging.getLogger("domains"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _played(
    tree: DictConfig, cfg: Config, domain: Domain, train: Sequence[Problem], test: Sequence[Problem]
) -> Looked:
    """What the domain and the model make of problems that were loaded."""
    try:
        if train and cfg.actor.domain_mix:
            DomainWeightedSampler(train, cfg.actor.domain_mix, random.Random())
    except ValueError as error:  # of a domain that no problem has, which the actor would find late
        return Looked([str(error)])
    test = test if cfg.evaluates else []
    said = f"{len(train)} to train on, {len(test)} to evaluate"
    if len(train) <= COMPARED and (both := shared(train, test)):
        said += f" ({both} of them are trained on too)"
    try:
        sizes = list(prompt_sizes(tree, cfg, domain, chain(train, test)))
    except TemplateError as error:
        return Looked([f"model_path={cfg.model_path}: its chat template refuses a first prompt: {error}"])
    except ValueError as error:
        return Looked([f"model_path={cfg.model_path}: {error}"])
    except Exception as error:  # whatever a domain does
        where = type(domain).__name__
        said = f"{where}.first_messages: {type(error).__name__}: {error}"
        return Looked([f"domain_hooks={cfg.domain_hooks}: {said}"])
    if not sizes and (train or test):
        try:
            said += _without_template(cfg)
        except TemplateError as error:
            return Looked([f"model_path={cfg.model_path}: its chat template is none: {error}"])
    return _judged(cfg, sizes, said)


def _without_template(cfg: Config) -> str:
    """What a domain that tells no prompt should know of the model's template. Raises TemplateSyntaxError."""
    if (tokenizer := _tokenizer(cfg.model_path)) is None:
        return ""
    if tokenizer.chat_template is None:
        return (
            "; the model has no chat template, so prompts of messages fail: give Prompt.token_ids, or add one"
        )
    try:
        render_chat(tokenizer, [{"role": "user", "content": "hi"}], template_kwargs={})
    except TemplateSyntaxError:
        raise
    except Exception:  # it may want other messages than these
        return ""
    return ""


def _carried(problems: Iterable[Problem]) -> None:
    """Raises ValueError for a problem that no worker can be sent; of many, the first ones are looked at."""
    until = time.monotonic() + PROMPTS_S
    for number, problem in enumerate(problems):
        payload(problem, number)
        if time.monotonic() > until:
            return


def prompt_sizes(tree: DictConfig, cfg: Config, domain: Domain, problems: Iterator[Problem]) -> Iterator[int]:
    """Tokens of first prompts, where the domain tells them and there is a tokenizer to be read here.

    Raises ValueError without a chat template, TemplateError for one that does not take them.
    """
    tokenizer, until = None, time.monotonic() + PROMPTS_S
    for problem in problems:
        messages = domain.first_messages(tree, problem)
        if messages is not None:
            if tokenizer is None:  # not before: importing its class takes a second
                if (tokenizer := _tokenizer(cfg.model_path)) is None:
                    return
                until = time.monotonic() + PROMPTS_S
            given = dict(cfg.llm.chat_template_kwargs)
            yield len(encode(tokenizer, render_chat(tokenizer, messages, template_kwargs=given)))
        if time.monotonic() > until:
            return


def _judged(cfg: Config, sizes: Sequence[int], said: str) -> Looked:
    limit, key = cfg.engine.max_model_len, engine_kind(cfg).context_key(cfg)
    if not sizes:
        return Looked(said=said)
    too_long = sum(size >= limit for size in sizes)
    if too_long == len(sizes):
        return Looked(
            [
                f"{key}={limit}: no prompt fits, the shortest of {len(sizes)} has {min(sizes)} "
                f"tokens; set {min(sizes) + 1} or more, or shorten the prompt"
            ]
        )
    said += f"; prompts of {min(sizes)} to {max(sizes)} tokens"
    return Looked(said=said + (f", {too_long} of {len(sizes)} do not fit {limit}" if too_long else ""))


def _tokenizer(model: str) -> "PreTrainedTokenizerFast | None":
    """That of a model; None where there is none to be read here, which others name."""
    folder = model_folder(model)
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    try:
        return load_tokenizer(str(folder))
    except Exception:  # whatever a damaged file makes of its reader
        return None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    """Read a tree from stdin, print what was found as the last line."""
    tree = OmegaConf.create(sys.stdin.read())
    assert isinstance(tree, DictConfig)
    with contextlib.redirect_stdout(sys.stderr):
        found = looked_at(tree)
    found.problems, found.remarks = [*map(_one_line, found.problems)], [*map(_one_line, found.remarks)]
    found.said = _one_line(found.said)
    print(json.dumps(asdict(found)), flush=True)
    os._exit(0)  # threads of a loader are not waited for


if __name__ == "__main__":
    main()
