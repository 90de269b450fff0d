"""What is wrong with a configuration; the launcher asks through the hooks before anything starts."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from domains.imitation import loss_problems
from domains.raro.config import KEY, RaroSettings, context_problems
from domains.raro.data import Problem, data_settings, located
from pipelinerl.base.hub import model_folder
from pipelinerl.base.tokenizing import encode, load_tokenizer
from pipelinerl.engines.kind import kind_named

LEAST_QUESTIONS = 2
"""Of an optimizer step. Below, its gradient is that of one question and half of another."""
ASKED_QUESTIONS = 16
"""That an error names the number of texts for."""
CHARS_PER_TOKEN = 6.0
"""No tokenizer gets more characters of running text into a token on average."""


def problems(cfg: DictConfig, settings: RaroSettings) -> Iterator[str]:
    """One line each."""
    yield from _data(cfg, settings)
    yield from _groups(cfg, settings)
    yield from _objective(cfg, settings)
    yield from _buffer(settings)
    engine_key = kind_named(OmegaConf.select(cfg, "engine.kind") or "vllm").length_key
    for key in (engine_key, "finetune.seq_length"):
        limit = OmegaConf.select(cfg, key)
        if limit is not None:
            yield from context_problems(settings, int(limit), key)


def _data(cfg: DictConfig, settings: RaroSettings) -> Iterator[str]:
    try:
        data = data_settings(settings.data)
        if data.source == "deepmath" and find_spec("math_verify") is None:
            yield (
                f"{KEY}.data.source=deepmath: math-verify compares its results and is not installed; "
                "pip install 'pipelinerl[math]'"
            )
        if settings.reward == "verifier" and not data.verifiable:
            yield (
                f"{KEY}.reward=verifier: nothing verifies answers of {KEY}.data.source={data.source} with "
                f"answer_form={data.answer_form}; set reward=critic"
            )
        if data.source != "countdown":
            splits = [*cfg.train_dataset_names, *cfg.test_dataset_names]
            rows = [row for split in dict.fromkeys(splits) for row in located(data, split)]
            yield from _length_problems(rows, settings, str(OmegaConf.select(cfg, "model_path") or ""))
    except ValueError as error:
        yield str(error)


def _length_problems(
    rows: Sequence[tuple[str, Problem]], settings: RaroSettings, model: str
) -> Iterator[str]:
    """The first question and the first expert answer that are longer than the context was budgeted for."""
    limits = {"question": ("max_question_tokens", settings.max_question_tokens)}
    if settings.reward == "critic":  # whose prompt alone shows the expert's answer
        limits["expert_answer"] = ("max_answer_tokens", settings.max_answer_tokens)
    for field, (key, limit) in limits.items():
        for where, problem in rows:
            least = _least_tokens(problem[field], limit, model)
            if least > limit:
                yield (
                    f"{where}: {field} has {least} tokens or more; {KEY}.{key} is {limit}, raise it or leave "
                    "the row out"
                )
                break


def _least_tokens(text: str, limit: int, model: str) -> int:
    """Tokens of the text, or fewer where they need no count or the tokenizer of `model` is not here."""
    if len(text.encode()) <= limit:  # a token has a byte at least
        return 0
    folder = model_folder(model)
    if folder is not None and (folder / "tokenizer.json").is_file():
        return len(encode(load_tokenizer(str(folder)), text))
    return int(len(text) / CHARS_PER_TOKEN)


def _groups(cfg: DictConfig, settings: RaroSettings) -> Iterator[str]:
    attempts = int(OmegaConf.select(cfg, "finetune.attempts"))
    if settings.reward != "expert" and attempts < 2:
        yield f"finetune.attempts={attempts}: the policy's baseline needs at least 2 attempts per question"
    cost = question_cost(settings, attempts)
    passes = "finetune.gradient_accumulation_passes"
    texts = int(cfg.finetune.train_batch_size) * int(cfg.finetune.gradient_accumulation_passes)
    if settings.reward != "expert" and texts < LEAST_QUESTIONS * cost:
        yield (
            f"{passes}={cfg.finetune.gradient_accumulation_passes}: a step of {texts} samples holds "
            f"{texts / cost:.1f} questions of {cost:.0f} samples each; set {LEAST_QUESTIONS * cost:.0f} or "
            f"more ({ASKED_QUESTIONS * cost:.0f} for {ASKED_QUESTIONS} questions), or lower finetune.attempts"
        )
    if settings.reward == "critic" and not OmegaConf.select(cfg, "finetune.rl.step_reward_advantages"):
        yield (
            "finetune.rl.step_reward_advantages=false: policy and critic have rewards of their own; set true"
        )


def question_cost(settings: RaroSettings, attempts: int) -> float:
    """Samples of a question: K (1 + G / (1 - f)) with a critic, one for each attempt without."""
    if settings.reward != "critic":
        return attempts
    return attempts * (1 + settings.critic_group_size / (1 - settings.replay.fraction))


def _objective(cfg: DictConfig, settings: RaroSettings) -> Iterator[str]:
    rl = cfg.finetune.rl
    roles = {"policy", "critic"} if settings.reward == "critic" else {"policy"}
    given = set(rl.role_weights or {})
    if given != roles:
        wanted = '{policy: "1/9", critic: "8/9"}' if len(roles) == 2 else "{policy: 1}"
        yield (
            f"finetune.rl.role_weights={dict(rl.role_weights or {})}: {KEY}.reward={settings.reward} trains "
            f"the roles {', '.join(sorted(roles))}; set {wanted}"
        )
    yield from loss_problems(f"{KEY}.reward=expert", settings.reward == "expert", rl.policy_loss)


def _buffer(settings: RaroSettings) -> Iterator[str]:
    if settings.reward != "critic":
        return
    replay = settings.replay
    if replay.backend == "redis" and not str(replay.path or "").startswith(("redis://", "rediss://")):
        yield f"{KEY}.replay.path={replay.path}: backend=redis needs redis://:PASSWORD@HOST:PORT"
    if replay.backend == "redis" and find_spec("redis") is None:
        yield f"{KEY}.replay.backend=redis: the client is not installed; pip install 'pipelinerl[redis]'"
    if replay.backend == "sqlite" and replay.path and not Path(replay.path).absolute().parent.is_dir():
        yield f"{KEY}.replay.path={replay.path}: its folder does not exist"
