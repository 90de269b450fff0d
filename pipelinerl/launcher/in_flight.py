"""How many rollouts are under way at each engine on GPUs where nobody said: `actor.llm_max_rollouts=null`."""

from collections.abc import Callable, Sequence

from omegaconf import OmegaConf

from pipelinerl.config.compose import Composition
from pipelinerl.config.files import typed
from pipelinerl.config.hosts import Host
from pipelinerl.config.tree import Config
from pipelinerl.launcher.decoder_shape import decoder_shape, model_config
from pipelinerl.launcher.placement import Place, derive, layout
from pipelinerl.launcher.sharing import ENGINE_BYTES_PER_PARAMETER, ENGINE_OTHER, CardMemory, card_memory

KEY = "actor.llm_max_rollouts"
FEWEST, MOST = 64, 512
"""Fewer leave an engine's card idle; more were not measured."""
USUAL_LENGTH = 0.5
"""Share of the longest request that a request holds in the cache on average."""


def choose_in_flight(
    composition: Composition,
    hosts: Sequence[Host],
    dry_run: bool,
    memory_of: Callable[[str], CardMemory | None] = card_memory,
) -> None:
    """Write the number into the tree, and the reason into the composition, where the key is null.

    As many as texts may be produced before the next update (`max_lag`, or those of one update where that is
    null), shared out over the engines, but no more than have room in an engine's cache.
    """
    tree = composition.tree
    if OmegaConf.select(tree, KEY) is not None:
        return
    try:
        number, because = _in_flight(typed(tree), hosts, dry_run, memory_of)
    except ValueError:  # a ConfigError, or a flag that is no number
        return  # the checks, which come next, say it
    OmegaConf.update(tree, KEY, number)
    composition.reasons[KEY] = because


def _in_flight(
    cfg: Config, hosts: Sequence[Host], dry_run: bool, memory_of: Callable[[str], CardMemory | None]
) -> tuple[int, str]:
    places = layout(cfg, hosts)
    update = derive(cfg, places.trainer_jobs).texts_per_update
    texts = update if cfg.max_lag is None else (cfg.max_lag // update + 1) * update
    engines = places.engines or [Place(0, [])]
    number = -(-texts // len(engines))
    source = "an update" if cfg.max_lag is None else f"max_lag={cfg.max_lag}"
    because = f"{texts} texts of {source} for {len(engines)} engines"
    if number > MOST:
        number, because = MOST, f"{because}, at most {MOST}"
    cards = [hosts[engines[0].host].devices[index] for index in engines[0].gpus]
    room = _cached_requests(cfg, cards, dry_run, memory_of)
    if room is not None and room < number:
        number, because = room, "room for their keys and values"
    if number < FEWEST:
        number, because = FEWEST, f"{because}, at least {FEWEST}"
    most = cfg.vllm_config.vllm_kwargs.get("max-num-seqs")
    if isinstance(most, int) and most < number:
        number, because = most, "vllm_config.vllm_kwargs.max-num-seqs"
    return number, because


def _cached_requests(
    cfg: Config, cards: Sequence[str], dry_run: bool, memory_of: Callable[[str], CardMemory | None]
) -> int | None:
    """Requests of the usual length whose keys and values one engine can hold; None if unknown."""
    shape = decoder_shape(model_config(cfg.model_path, ask_hub=not dry_run))
    found = [memory_of(card) for card in cards]
    totals = [card.total for card in found if card is not None]
    if shape is None or not totals or len(totals) < len(found):
        return None
    kwargs = cfg.vllm_config.vllm_kwargs
    # Weights lie in the cards of an engine once for each data-parallel copy.
    copies = cfg.vllm_config.parallel_size("data")
    room = float(kwargs.get("gpu-memory-utilization") or 0.9) * sum(totals)
    room -= copies * shape.parameters * ENGINE_BYTES_PER_PARAMETER + len(totals) * ENGINE_OTHER
    token = 2 * 2 * shape.keys * shape.layers  # keys and values in bfloat16
    return max(0, int(room / token / (USUAL_LENGTH * cfg.engine.max_model_len)))
