"""Where the files of a model are: in its folder, or for a hub's name (owner/model) in the local cache.

Whoever reads a model's files asks here, so that a hub's model is checked and compared as a folder is. The
hub's client is imported only for a hub's name: most runs name a folder, and the import takes half a second.
"""

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

NAME = re.compile(r"^[\w][\w.-]*/[\w][\w.-]*$")
CONNECT_S = 5.0
"""For the hub to answer at all."""


def of_hub(model: str) -> bool:
    """Whether a model is given by a hub's name: no file or folder, nor one in a folder that is there."""
    path = Path(model)
    return not path.exists() and bool(NAME.match(model)) and not Path(path.parts[0]).is_dir()


def model_folder(model: str, ask: bool = False) -> Path | None:
    """The folder that has a model's files on this machine; None where there is none.

    A hub's model has one as soon as its `config.json` is in the cache, which then may lack other files. `ask`
    says whether the hub is asked for a `config.json` that the cache lacks.
    """
    if (folder := Path(model)).is_dir():
        return folder
    if not of_hub(model):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json")
    if isinstance(cached, str):
        return Path(cached).parent
    return _asked(model) if ask and silence() is None else None


@cache
def _asked(name: str) -> Path | None:
    from huggingface_hub import hf_hub_download

    with suppress(Exception):  # no access, no such model: the engine's own message is the better one
        return Path(hf_hub_download(name, "config.json")).parent
    return None


def with_files(model: str, patterns: Sequence[str]) -> Path:
    """The folder of a model that has its files of these patterns; a hub's that the cache lacks are fetched.

    Raises OSError or ValueError where the name can be had neither from the cache nor from the hub.
    """
    if (folder := Path(model)).is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=list(patterns)))


@cache
def silence() -> str | None:
    """Why the hub cannot be asked, or None. Its own client tries for half a minute before it says so."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = urlsplit(constants.ENDPOINT)
    if getproxies().get(address.scheme):  # the proxy knows the way, and perhaps the name
        return None
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        return f"{host} does not answer ({error.strerror or error})"
    return None
