"""The servers of a run: those that it starts, and what is asked of services that the user named.

The hooks of `domain.py` call it before anything is started, so that an address, a token or a corpus that does
not fit the chains is one line and not a run full of refused searches.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from omegaconf import DictConfig

from domains.privacy_hopqa.agent.concurrency import run_limited
from domains.privacy_hopqa.agent.errors import PrivacyScoreFailure, TransportFailure
from domains.privacy_hopqa.agent.search_service import TOKEN_FILE_VARIABLE, check_fingerprint, helper_headers
from domains.privacy_hopqa.agent.transport import JsonClient, RequestRefused
from domains.privacy_hopqa.data.chains import Chain, PrivateQuestion
from domains.privacy_hopqa.data.identity import value_aliases
from domains.privacy_hopqa.dataset import load_problems
from domains.privacy_hopqa.reward.scoring import score_by_service
from domains.privacy_hopqa.same_world import WHOLE_BYTES, digests, foreign, lacking, samples
from domains.privacy_hopqa.settings import PrivacyHopQASettings, dataset_names, has_data
from domains.privacy_hopqa.world import generate, world_config
from domains.privacy_hopqa.world.config import manifest_of
from pipelinerl.base.errors import ConfigError
from pipelinerl.domain import ServiceSpec
from retrieval_server.backends import choose, describe, start_deadline_s
from retrieval_server.bounds import ANSWER_CHARS, HIT_CHARS
from retrieval_server.identity import normalise, strip_extensions

KEY = "privacy_hopqa"
URL_KEY = f"{KEY}.helper_service_url"
SCORER_KEY = f"{KEY}.privacy_reward_service_url"
SCORER_START_S = 600.0
"""A classifier may have to be read from disk first."""
_ASK_TIMEOUT_S = 30.0
_GENERATED = "leave the key out and the run starts a service on the world that it generates"
_IDS_AT_A_TIME = 500
_TASKS_AT_A_TIME = 8
_SHOWN = 3
_ALIKE = ("version", "fingerprint", "tasks", "web_docs", "max_hit_chars", "max_answer_chars")
"""Of `/health`: what servers over the same data have in common."""


def retrieval_server(cfg: DictConfig, settings: PrivacyHopQASettings) -> ServiceSpec:
    """The retrieval server that a run starts on its own data."""
    argv = [sys.executable, "-m", "retrieval_server", "--host", "{host}", "--port", "{port}"]
    if settings.task_data_root:
        argv += ["--tasks", settings.task_data_root]
    web = Path(settings.web_corpus_path) if settings.web_corpus_path else None
    backend = choose(web)
    if web is not None:
        argv += ["--web", str(web), "--backend", backend]
    if settings.retrieval_workers > 1:
        argv += ["--workers", str(settings.retrieval_workers)]
    if (of_hit := settings.retrieval_source_chars) > HIT_CHARS:
        argv += ["--max-hit-chars", str(of_hit)]
    if (of_answer := settings.retrieval_answer_chars or of_hit) > ANSWER_CHARS:
        argv += ["--max-answer-chars", str(of_answer)]
    return ServiceSpec(
        name="retrieval",
        argv=argv,
        url_key=URL_KEY,
        replicas=settings.retrieval_replicas,
        remote_argv=("--allow-remote", "--token-file", "{token_file}"),
        token_variable=TOKEN_FILE_VARIABLE,
        health="/ready",
        start_deadline_s=start_deadline_s(web),
        note=describe(web, backend) if has_data(cfg, settings) else "the world that the start makes",
    )


def scoring_server(options: Sequence[str]) -> ServiceSpec:
    """The scoring server that a run starts with these options."""
    argv = [sys.executable, "-m", "domains.privacy_hopqa.scorer", "--host", "{host}", "--port", "{port}"]
    return ServiceSpec(
        name="scoring",
        argv=[*argv, *options],
        url_key=SCORER_KEY,
        start_deadline_s=SCORER_START_S,
    )


def address_problems(settings: PrivacyHopQASettings) -> Iterator[str]:
    """Addresses that are none, one line each."""
    scorer = settings.privacy_reward_service_url
    named = [("helper_service_url", url) for url in settings.retrieval_urls]
    named += [] if scorer is None else [("privacy_reward_service_url", scorer)]
    for name, url in named:
        if not _is_address(url):
            yield f"{KEY}.{name}={url}: no address of a service; write http://HOST:PORT"
    if settings.helper_service_url is not None and not settings.retrieval_urls:
        yield f"{URL_KEY}=[]: no address; leave it out, and the run starts a server"
    for url in dict.fromkeys(settings.retrieval_urls):
        if settings.retrieval_urls.count(url) > 1:
            yield f"{URL_KEY}: {url} is named twice; leave one of them out"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:  # a port that is no number, half a pair of brackets
        return False
    plain = not (parts.query or parts.fragment or any(character.isspace() for character in url))
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port_fits and plain


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the chains of a run will ask for: task ids, and for each gold page the ids that it may have.

    `gold` are all names of gold pages, also of those that are known by their URL.
    """

    tasks: tuple[str, ...] = ()
    pages: tuple[tuple[str, ...], ...] = ()
    gold: frozenset[str] = frozenset()

    @classmethod
    def of(cls, cfg: DictConfig, settings: PrivacyHopQASettings) -> "Wanted":
        """By the datasets that the run names; nothing for a world that is still to be generated."""
        if not has_data(cfg, settings):
            return cls()
        paths, root = settings.dataset_paths, settings.task_data_root
        problems = load_problems(dataset_names(cfg), **paths, task_data_root=root)
        chains: list[Chain] = [problem["chain"] for problem in problems]
        hops = [hop for chain in chains for hop in chain.hops if hop.source == "web"]
        pages = () if settings.no_web else dict.fromkeys(_page_ids(hop.gold_values) for hop in hops)
        gold = frozenset(value_aliases(value for hop in hops for value in hop.gold_values))
        return cls(tuple(dict.fromkeys(chain.task_id for chain in chains)), tuple(filter(None, pages)), gold)


def _page_ids(gold_values: Sequence[str]) -> tuple[str, ...]:
    """The ids without `web/` under which a gold page may be served; none if it may be known by its URL."""
    found: dict[str, None] = {}
    if any("://" in value for value in gold_values):
        return ()
    for value in gold_values:
        if normalise(value).startswith("web/"):
            bare = value.strip().partition("/")[2].split("#", 1)[0].rstrip("/")
            found |= dict.fromkeys((bare, strip_extensions(bare), normalise(bare)))
    return tuple(found)


def ask_retrieval(cfg: DictConfig, settings: PrivacyHopQASettings) -> str:
    """Ask each named server what the chains need; what they serve, in a phrase.

    Raises ConfigError with one line for each thing that is wrong.
    """
    with _world_of(cfg, settings) as found:
        return _asked(cfg, found, has_data(cfg, settings))


def ask_scorer(url: str, timeout_s: float) -> str:
    """Ask the named scoring service for one score. Raises ConfigError if no rollout could use its answer."""
    nothing = dict.fromkeys(("split", "pattern", "questions", "company_description"), "")
    ids = {"problem_id": "none", "chain_id": "none", "task_id": "NONE", "company": "Example"}
    chain = Chain(**ids, **nothing, hops=(), final_answers=(), task_questions=())
    fact = PrivateQuestion("Which colour has the door?", "blue", (), "hop1", 1, "local/NONE/note.md")

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            client = JsonClient(url, session, timeout_s)
            await score_by_service(client, chain, [fact], [("weather in spring",)])

    try:
        asyncio.run(ask())
    except TransportFailure as error:
        problem = f"{error}; start it, or leave the key out and each worker scores by rules"
    except PrivacyScoreFailure as error:
        problem = str(error)
    else:
        return "scores an invented log"
    raise ConfigError([f"{SCORER_KEY}={url}: {problem}"])


@contextmanager
def _world_of(cfg: DictConfig, settings: PrivacyHopQASettings) -> Iterator[PrivacyHopQASettings]:
    """The settings, for a moment with a copy of the world where the start is about to generate one."""
    if has_data(cfg, settings):
        yield settings
        return
    with tempfile.TemporaryDirectory() as folder:
        world = generate(world_config(**settings.world), Path(folder) / "world")
        paths = {key.removeprefix(f"{KEY}."): value for key, value in world_paths(world).items()}
        yield settings.model_copy(update=paths)


def world_paths(world: Path) -> dict[str, str]:
    """Configuration keys of a generated world."""
    chains = {
        f"{KEY}.final_{split}_dataset_path": str(world / f"chains_{split}.jsonl")
        for split in ("train", "val", "test")
    }
    return chains | {
        f"{KEY}.task_data_root": str(world / "tasks"),
        f"{KEY}.web_corpus_path": str(world / "web.jsonl"),
    }


def _asked(cfg: DictConfig, settings: PrivacyHopQASettings, has_files: bool) -> str:
    wanted, problems = Wanted.of(cfg, settings), list[str]()
    served: dict[str, Mapping[str, Any]] = {}
    said = ""
    for url in settings.retrieval_urls:
        try:
            found, served[url], said = asyncio.run(_ask(url, settings, wanted, has_files))
        except TransportFailure as error:
            found = [f"{error}; start it, or leave the key out and the run starts one"]
        except (RequestRefused, ValueError) as error:
            found = [str(error)]
        problems += [f"{URL_KEY}={url}: {problem}" for problem in found]
    if problems := problems or list(_differences(served)):
        raise ConfigError(problems)
    return f"each {said}" if len(served) > 1 else said


def _differences(served: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Servers that would not answer a search alike, by what they tell of themselves."""
    first, *others = served
    for url in others:
        for name in _ALIKE:
            one, other = served[first].get(name), served[url].get(name)
            if one != other:
                yield (
                    f"{URL_KEY}: {name} is {one} at {first} and {other} at {url}; "
                    "give all servers the same files and bounds"
                )


async def _ask(
    url: str, settings: PrivacyHopQASettings, wanted: Wanted, has_files: bool
) -> tuple[list[str], Mapping[str, Any], str]:
    """What is wrong with one server, what it tells of itself, and what it serves in a phrase.

    Without `has_files` the run generates its world, whose folder is another one than that of `settings`.
    """
    timeout_s = min(_ASK_TIMEOUT_S, settings.helper_timeout_s)
    async with aiohttp.ClientSession() as session:
        client = JsonClient(url, session, timeout_s, headers=helper_headers())
        served = await check_fingerprint(client, manifest_of(settings.task_data_root).get("fingerprint"))
        tasks, pages = await _missing(client, wanted)
        same, others = "", list[str]()
        if not tasks:  # also of the same fingerprint, which tells with what texts a world began
            same, others = await _texts(client, settings, wanted, served if pages is not None else None)
    problems = [*_bound_problems(settings, served), *others]
    if tasks:
        root = settings.task_data_root or "TASKS"
        remedy = f"start the service with --tasks {root}" if has_files else _GENERATED
        problems.append(f"{_some(tasks, len(wanted.tasks), 'tasks')} of the chains are not served; {remedy}")
    if pages:
        corpus = settings.web_corpus_path or "FILE"
        remedy = f"start the service with --web {corpus}" if has_files else _GENERATED
        problems.append(
            f"{_some(pages, len(wanted.pages), 'gold pages')} of the chains are not served; "
            f"{remedy}, or set {KEY}.no_web=true"
        )
    if problems:
        return problems, served, ""
    said = f"{served.get('tasks', '?')} tasks, {served.get('web_docs', '?')} pages"
    if wanted.tasks:
        said += f"; all {len(wanted.tasks)} tasks of the chains"
        said += ", gold pages not asked for" if pages is None else f" and {len(wanted.pages)} gold pages"
    return problems, served, f"{said}; {same}"


async def _texts(
    client: JsonClient, settings: PrivacyHopQASettings, wanted: Wanted, ours: Mapping[str, Any] | None
) -> tuple[str, list[str]]:
    """What was compared, and what is wrong: a world may have the ids of another one and none of its texts.

    `ours` is what a service tells of itself that holds texts as they are and knows their digests; one of
    another make, None, is searched.
    """
    root, web = settings.task_data_root, None if settings.no_web else settings.web_corpus_path
    further = ""
    if ours is not None:
        mine = digests(root, web, wanted.tasks)
        count, other = len(mine), await _other_texts(client, mine)
        further = _further(mine, ours, web, await _documents(client, wanted.tasks))
    else:
        looked_up = samples(root, web, wanted.tasks, wanted.gold)
        count, other = len(looked_up), foreign(await lacking(client, looked_up), looked_up)
    if other:
        return "", [
            f"serves another world: it lacks {_some(other, count, 'texts')} that were compared; "
            "start it on the files of this run, or leave the key out and the run starts one"
        ]
    return (f"{count} texts compared{further}" if count else "texts not compared, none is here"), []


def _further(
    mine: Mapping[str, str], served: Mapping[str, Any], web: str | None, documents_there: int
) -> str:
    """What is served beside the texts of this run, among which a search has to find them."""
    pages, pages_there = sum(id_.startswith("web/") for id_ in mine), served.get("web_docs")
    documents, more = len(mine) - pages, list[str]()
    if 0 < documents < documents_there:
        more.append(f"{documents_there - documents} private documents of its tasks")
    whole = web is not None and Path(web).stat().st_size <= WHOLE_BYTES
    if whole and isinstance(pages_there, int) and pages_there > pages:
        more.append(f"{pages_there - pages} pages")
    return f", and {' and '.join(more)} are served that this run does not have" if more else ""


async def _documents(client: JsonClient, tasks: Sequence[str]) -> int:
    """Private documents that the service has in these tasks."""
    found = 0
    for start in range(0, len(tasks), _IDS_AT_A_TIME):
        answer = await client.post("/known", {"tasks": list(tasks[start : start + _IDS_AT_A_TIME])})
        count = answer.get("documents") if isinstance(answer, Mapping) else None
        if not isinstance(count, int):
            raise RequestRefused(f"{client.base_url}/known answered without documents")
        found += count
    return found


async def _other_texts(client: JsonClient, mine: Mapping[str, str]) -> list[str]:
    """Ids of the texts of which `/known` does not have the digest."""
    found, ids = list[str](), list(mine)
    for start in range(0, len(ids), _IDS_AT_A_TIME):
        asked = {id_: mine[id_] for id_ in ids[start : start + _IDS_AT_A_TIME]}
        answer = await client.post("/known", {"texts": asked})
        other = answer.get("other_texts") if isinstance(answer, Mapping) else None
        if not isinstance(other, list):
            raise RequestRefused(f"{client.base_url}/known answered without other_texts")
        found += map(str, other)
    return found


def _bound_problems(settings: PrivacyHopQASettings, served: Mapping[str, Any]) -> Iterator[str]:
    """Characters that the run asks for and our server would cut; other services do not tell."""
    for name, bound in (("source", "max_hit_chars"), ("answer", "max_answer_chars")):
        wanted, given = getattr(settings, f"retrieval_{name}_chars"), served.get(bound)
        if isinstance(given, int) and wanted > given:
            yield (
                f"gives {given} characters, {KEY}.retrieval_{name}_chars={wanted} asks for more; "
                f"raise its --{bound.replace('_', '-')}"
            )


def _some(ids: Sequence[str], of: int, what: str) -> str:
    shown = ", ".join(ids[:_SHOWN]) + (", ..." if len(ids) > _SHOWN else "")
    return f"{len(ids)} of {of} {what} ({shown})"


async def _missing(client: JsonClient, wanted: Wanted) -> tuple[list[str], list[str] | None]:
    """Tasks and pages that are not served; None for pages if the service cannot say.

    A service of another make is asked by a search in each task. Its pages are not asked for: a query that
    finds one would have to tell what is researched.
    """
    try:
        tasks = await _unknown(client, "tasks", wanted.tasks)
        pages = await _unknown(client, "pages", [one for ids in wanted.pages for one in ids])
    except RequestRefused as error:
        if error.status not in (404, 405):
            raise
        refusals = await run_limited(
            [partial(_refuses, client, task) for task in wanted.tasks], _TASKS_AT_A_TIME
        )
        return [task for task, refused in zip(wanted.tasks, refusals) if refused], None
    return sorted(tasks), [f"web/{ids[0]}" for ids in wanted.pages if pages.issuperset(ids)]


async def _unknown(client: JsonClient, name: str, ids: Sequence[str]) -> set[str]:
    """Those of the ids that `/known` says it does not have; asked at least once, so that a refusal shows."""
    found: set[str] = set()
    for start in range(0, max(len(ids), 1), _IDS_AT_A_TIME):
        answer = await client.post("/known", {name: list(ids[start : start + _IDS_AT_A_TIME])})
        missing = answer.get(f"missing_{name}") if isinstance(answer, Mapping) else None
        if not isinstance(missing, list):
            raise RequestRefused(f"{client.base_url}/known answered without missing_{name}")
        found.update(missing)
    return found


async def _refuses(client: JsonClient, task_id: str) -> bool:
    try:
        await client.post("/local/search", {"task_id": task_id, "query": task_id, "k": 1})
    except RequestRefused:
        return True
    return False
