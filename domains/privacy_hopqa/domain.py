"""What the core knows of this domain: settings, world, services, checks, demonstrations, report.

The launcher, the report and the bootstrap call these hooks; `domain_hooks` of the configuration names them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from domains.privacy_hopqa.context import first_plan, prompt_problems
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.dataset import load_problems
from domains.privacy_hopqa.leakage.notes import query_notes
from domains.privacy_hopqa.leakage.section import leakage_section
from domains.privacy_hopqa.reward.capture import ANCHOR_ROLE, POLICY_ROLE
from domains.privacy_hopqa.same_world import without_gold
from domains.privacy_hopqa.scorer.protocol import MAX_QUERIES
from domains.privacy_hopqa.services import (
    KEY,
    SCORER_KEY,
    URL_KEY,
    address_problems,
    ask_retrieval,
    ask_scorer,
    retrieval_server,
    scoring_server,
    world_paths,
)
from domains.privacy_hopqa.settings import (
    PrivacyHopQASettings,
    dataset_names,
    has_data,
    remedy_for,
    settings_of,
)
from domains.privacy_hopqa.teacher.demonstrations import ADVERSARY, demonstrations
from domains.privacy_hopqa.teacher.script import SKELETONS
from domains.privacy_hopqa.world import WorldError, generate, world_config
from pipelinerl.domain import BaseDomain, NamedService, NotesOf, ReportFocus, ReportSection, ServiceSpec
from pipelinerl.engines.kind import kind_named

WORLD_FOLDER = "world"


class PrivacyHopQADomain(BaseDomain):
    """Hooks of `privacy_hopqa`."""

    policy_keys = ()

    settings = PrivacyHopQASettings
    settings_key = KEY
    folders = ("audit", "traces", WORLD_FOLDER)
    report_focus = ReportFocus(
        headline=(
            *("success", "success_if_well_formed", "reward", "hop_accuracy"),
            *("leak", "leak_intent", "well_formed"),
        ),
        stages={
            "plan: gold retrieved": "plan_gold_retrieved",
            "choose: correct": "choose_correct",
            "read: correct": "read_accuracy",
            "resolve: correct": "resolve_accuracy",
        },
    )

    def prepare(self, cfg: DictConfig, output_dir: Path) -> Mapping[str, Any]:
        """Generate the synthetic world into `<output_dir>/world` unless the user named a dataset.

        A world that is there already is kept; another one there is an error (WorldError).
        """
        settings = settings_of(cfg)
        if has_data(cfg, settings):
            return {}
        world = output_dir / WORLD_FOLDER
        generate(world_config(**settings.world), world)
        return world_paths(world)

    def makes_data(self, cfg: DictConfig) -> bool:
        """Whether a world is generated."""
        return not has_data(cfg, settings_of(cfg))

    def services(self, cfg: DictConfig) -> list[ServiceSpec]:
        """The retrieval server unless an address is configured; a scoring server if one is asked for."""
        settings = settings_of(cfg)
        specs = [] if settings.helper_service_url is not None else [retrieval_server(cfg, settings)]
        if settings.scoring_server_options is not None:
            specs.append(scoring_server(settings.scoring_server_options))
        return specs

    def named_services(self, cfg: DictConfig) -> list[NamedService]:
        """The retrieval and the scoring service of the user, if there are any."""
        settings = settings_of(cfg)
        named = list[NamedService]()
        if (scorer := settings.privacy_reward_service_url) is not None:
            score = partial(ask_scorer, scorer, settings.privacy_reward_timeout_s)
            named.append(NamedService(name="scoring", url_key=SCORER_KEY, url=scorer, ask=score))
        if not settings.retrieval_urls:
            return named
        shown = ", ".join(settings.retrieval_urls)
        ask = partial(ask_retrieval, cfg, settings)
        # Of data that is served alone nothing is here to compare: another server may serve anything.
        here = settings.task_data_root is not None or not has_data(cfg, settings)
        found = NamedService(name="retrieval", url_key=URL_KEY, url=shown, ask=ask, compares=here)
        return [found, *named]

    def validate(self, cfg: DictConfig) -> list[str]:
        """Problems of the domain's block and of its fit with the rest, one line each."""
        try:
            settings = settings_of(cfg)
        except ValueError as error:
            return [str(error)]
        checks = (_data_problems, _row_problems, _mode_problems, _context_problems)
        return [problem for check in checks for problem in check(cfg, settings)]

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The plan for the first question of a chain."""
        if not isinstance(problem.get("chain"), Chain):
            return None
        return [*first_plan(problem["chain"], settings_of(cfg)).messages]

    def validate_recipe(self, cfg: DictConfig) -> list[str]:
        """Play that is imitated by a model that cannot read it, by none, or in prompts that do not fit."""
        try:
            settings = settings_of(cfg)
        except ValueError as error:
            return [str(error)]
        recipe = cfg.bootstrap
        if all(phase.name == ADVERSARY for phase in recipe.phases):  # has prompts of its own
            return []
        room = _room(settings) | {
            f"bootstrap.shape.max_length={recipe.shape.max_length}": recipe.shape.max_length
        }
        found = [*prompt_problems(settings, "bootstrap.start", recipe.start, room)]
        if settings.prompt_set == "full" and recipe.start is None:
            found.insert(
                0,
                f"bootstrap.start=null: {KEY}.prompt_set=full is in English, which a new model does not "
                "know; set bootstrap.start=MODEL (python -m pipelinerl.pretrained smollm2 OUT makes one)",
            )
        return found

    def remedy(self, key: str) -> str | None:
        """What replaces a key of the published recipe that has no counterpart here."""
        block, _, name = key.partition(".")
        return remedy_for(name) if block == KEY else None

    def report(self, output_dir: Path) -> list[ReportSection]:
        """Leakage before and after training from the audit log, with controls and intervals."""
        return leakage_section(output_dir)

    def rollout_notes(self, output_dir: Path) -> NotesOf | None:
        """Each web query and what it reveals, from the audit log."""
        return query_notes(output_dir)

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterable[Any]:
        """Scripted play in one generated world, for the bootstrap recipe."""
        return demonstrations(settings_of(cfg), seed, phase)

    def vocabulary(self) -> Sequence[str]:
        """The skeletons of the compact answers."""
        return SKELETONS


def _data_problems(cfg: DictConfig, settings: PrivacyHopQASettings) -> Iterator[str]:
    yield from address_problems(settings)
    for name in ("retrieval_workers", "retrieval_replicas"):
        if settings.helper_service_url is not None and (count := getattr(settings, name)) > 1:
            yield (
                f"{KEY}.{name}={count} is for the server that a run starts, but "
                f"{KEY}.helper_service_url names one; leave one of them out"
            )
    if not has_data(cfg, settings):
        try:
            world_config(**settings.world)
        except (WorldError, TypeError) as error:
            yield f"{KEY}.{error}"
        # Of a run that has made its world, the resume compares these keys.
        made = (Path(str(OmegaConf.select(cfg, "output_dir") or "")) / WORLD_FOLDER).is_dir()
        for key in () if made else ("task_data_root", "web_corpus_path"):
            if value := getattr(settings, key):
                yield (
                    f"{KEY}.{key}={value}: no chain file is named, so the run would serve a generated world; "
                    f"set {KEY}.final_train_dataset_path, or leave the key out"
                )
        return
    if settings.task_data_root is None and settings.helper_service_url is None:
        yield f"{KEY}.task_data_root=null: set the folder of the tasks, or {KEY}.helper_service_url"
    if settings.web_corpus_path is None and settings.helper_service_url is None and not settings.no_web:
        yield f"{KEY}.web_corpus_path=null: set it, or {KEY}.helper_service_url, or {KEY}.no_web=true"
    for key, value in settings.dataset_paths.items():
        if not Path(value).is_file():
            yield f"{KEY}.{key}={value}: no such file"
    for key, kind in (("task_data_root", "folder"), ("web_corpus_path", "file")):
        value = getattr(settings, key)
        if value and not Path(value).exists():
            yield f"{KEY}.{key}={value}: no such {kind}"


def _row_problems(cfg: DictConfig, settings: PrivacyHopQASettings) -> Iterator[str]:
    """The first row that cannot be used, with file and line, and files of another world."""
    paths, root = settings.dataset_paths, settings.task_data_root
    places = (*paths.values(), *([root] if root else []))
    if not has_data(cfg, settings) or not all(Path(place).exists() for place in places):
        return
    try:
        problems = load_problems(dataset_names(cfg), **paths, task_data_root=root)
        web = None if settings.no_web else settings.web_corpus_path
        found = without_gold([problem["chain"] for problem in problems], root, web)
    except (ValueError, OSError) as error:
        yield str(error)
        return
    for key, (lost, among) in found.items():
        if 2 * lost >= among > 0:
            yield (
                f"{KEY}.{key}={getattr(settings, key)}: {lost} of {among} gold documents of the chains are "
                "not there or hold none of the answers, so the chains are about other files; give theirs "
                "(python -m domains.privacy_hopqa.validate lists each)"
            )


def _mode_problems(cfg: DictConfig, settings: PrivacyHopQASettings) -> Iterator[str]:
    yield from _query_log_problems(settings)
    if settings.situational and not OmegaConf.select(cfg, "finetune.rl.step_reward_advantages"):
        yield (
            f"{KEY}.training_reward_mode=hop_step_situational needs finetune.rl.step_reward_advantages=true"
        )
    if settings.privacy_reward_weight > 0 and not settings.situational:
        yield (
            f"{KEY}.privacy_reward_weight={settings.privacy_reward_weight:g} lowers the rewards of plans, "
            "which have none of their own with training_reward_mode=outcome; "
            "set it to 0, or choose hop_step_situational"
        )
    if OmegaConf.select(cfg, "test_dataset_names"):
        for switch, on in settings.gold_switches.items():
            if on:
                yield f"{KEY}.{switch} uses gold answers: not in evaluation; set test_dataset_names=[]"
    weights = dict(OmegaConf.select(cfg, "finetune.rl.role_weights") or {})
    if settings.anchor_stages and not {POLICY_ROLE, ANCHOR_ROLE} <= weights.keys():
        yield (
            f"{KEY}.anchor_stages=true gives texts the roles {POLICY_ROLE} and {ANCHOR_ROLE}; "
            f"set finetune.rl.role_weights={{{POLICY_ROLE}: 1, {ANCHOR_ROLE}: 0}}"
        )
    if weights and not settings.anchor_stages:
        yield f"finetune.rl.role_weights is set, but texts have roles only with {KEY}.anchor_stages=true"


def _query_log_problems(settings: PrivacyHopQASettings) -> Iterator[str]:
    """What a scoring service cannot be asked."""
    served = settings.scoring_server_options is not None
    # Not a rule of the block: the launcher fills in the address of the server that it starts.
    if served and settings.privacy_reward_service_url is not None:
        yield (
            f"{KEY}.scoring_server_options starts a server, {KEY}.privacy_reward_service_url names another: "
            "set one"
        )
    longest = settings.max_iterations * settings.max_parallel_retrieval_actions
    if longest > MAX_QUERIES and (served or settings.privacy_reward_service_url is not None):
        yield (
            f"{KEY}.max_iterations={settings.max_iterations} times {KEY}.max_parallel_retrieval_actions="
            f"{settings.max_parallel_retrieval_actions} may be more web queries than the {MAX_QUERIES} that "
            "a scoring service takes; lower one"
        )


def _room(settings: PrivacyHopQASettings) -> dict[str, int]:
    """Tokens for a prompt and its answer, by the setting that bounds them."""
    limit = settings.generation_context_limit_tokens
    named = f"{KEY}.generation_context_limit_tokens={limit}"
    return {named: limit - settings.generation_context_margin_tokens}


def _context_problems(cfg: DictConfig, settings: PrivacyHopQASettings) -> Iterator[str]:
    limit = settings.generation_context_limit_tokens
    server = kind_named(OmegaConf.select(cfg, "engine.kind") or "vllm").length_key
    for key in (server, "finetune.seq_length"):
        value = OmegaConf.select(cfg, key)
        if value is not None and int(value) < limit:
            yield (
                f"{key}={value} is below {KEY}.generation_context_limit_tokens={limit}; "
                "raise the one or lower the other"
            )
    room = limit - settings.generation_context_margin_tokens
    if room <= 0:
        yield (
            f"{KEY}.generation_context_margin_tokens={settings.generation_context_margin_tokens} leaves no "
            f"room in {KEY}.generation_context_limit_tokens={limit}"
        )
    else:
        yield from prompt_problems(
            settings, "model_path", OmegaConf.select(cfg, "model_path"), _room(settings)
        )
    deadline = OmegaConf.select(cfg, "actor.rollout_deadline_s")
    if deadline is not None and settings.rollout_timeout_s >= deadline:
        yield (
            f"{KEY}.rollout_timeout_s={settings.rollout_timeout_s:g} must be below "
            f"actor.rollout_deadline_s={deadline:g}, so that a slow rollout fails by itself"
        )
