"""Which values of a configuration are secret, and a tree in which they are masked.

A run's tree is read by people and shared: `files.save` writes it masked, with the values beside it in a file
that is its owner's alone. Texts that quote them are masked too (`base/masking.py`). Secret is what comes from
the environment (`${oc.env:NAME}`), what a key names as a token, key, password or secret, a text with one in
it (an address, a header, an option of a command), and what refers to one of these.
"""

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import quote, unquote

from omegaconf import DictConfig, OmegaConf

from pipelinerl.base.errors import fields_at
from pipelinerl.base.masking import MASK, keep_secret
from pipelinerl.config.tree import Config

Place = tuple[str | int, ...]
"""Keys and indices from the root of the tree."""
_ALWAYS = {
    *("password", "passwords", "passwd", "passphrase", "passphrases", "pwd", "secret", "secrets"),
    *("passcode", "passcodes", "pw", "jwt", "otp", "cred", "creds"),
    *(
        "credential",
        "credentials",
        "apikey",
        "apikeys",
        "authorization",
        "auth",
        "bearer",
        "cookie",
        "cookies",
    ),
    "webhook",
}
_TOKENS = {"token", "tokens"}
"""In a key that is not the core's: `max_tokens` holds a number, which is not masked."""
_LAST = {"key", "keys", "pass", "pat"}
"""As the last word of such a key."""
_OF_KEYS = {"access", "account", "api", "encryption", "master", "private", "shared", "signing", "ssh"}
"""Before the word key, wherever it is in such a key."""
_JOINED = re.compile(
    rf"\w+(?:passwords?|passwd|passphrase|secrets?|credentials?)|(?:{'|'.join(sorted(_OF_KEYS))}|secret)keys?"
)
"""Words that are written without a mark between them: `dbpassword`, `secretkey`."""
_JOINED_TOKEN = re.compile(r"\w+tokens?")
_WHERE = {"env", "file", "id", "ids", "name", "path"}
"""As the last word: where a secret is found, or of which it is."""
_VARIABLE = re.compile(r"oc\.env:\s*['\"]?([^,}'\"\s]+)")
_IN_ADDRESS = re.compile(
    r"://[^/\s@]*:[^/\s@]+@|\bhttps?://[^/\s@]+@|[?&#;](sig|[\w-]*(token|key|secret|password|pwd|signature)[\w-]*)=",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"://(?:[^/\s@:]*:)?([^/\s@:]+)@")
_QUERY = re.compile(r"[?&#;]([\w-]+)=([^&#;\s'\"]+)")
_SIGNATURES = {"sig", "signature"}
_AFTER_SCHEME = re.compile(r"\b(?:bearer|basic)\s+(\S+)", re.IGNORECASE)
_IN_HEADER = re.compile(r"\bauthorization:\s*\S|^\s*(?:bearer|basic)\s+\S{6,}\s*$", re.IGNORECASE)
_HEADERS = re.compile(
    r"^([A-Za-z]+(?:-[A-Za-z]+)+):\s*\S+\s*$|(?<!\S)(?:-H|--header)[\s=]*['\"]?([A-Za-z][\w-]{0,60}):\s*\S"
)
"""A header alone, or behind an option of curl or wget."""
_IN_COMMAND = re.compile(
    r"(?<!\S)(?:(?:--?[a-z]{1,20}=)?([A-Z][A-Z0-9_]*)=|--?([A-Za-z][\w-]*)(?:=|\s+(?!-)))(?=\S*[A-Za-z])"
)
"""An option or a variable with its value, as commands have them; one of a number counts something."""
_SHORT_OPTIONS = {
    "-p": r"sshpass|my(?:sql|cli)\w*|mariadb[\w-]*|mongo\w*|7z\w*|(?:docker|podman|helm|az)(?: \w+)? login",
    "-P": "zip|unzip|sqlcmd|bcp",
    "-a": "redis-cli",
    "-b": "curl",
    "-k": "openssl",
    "-w": r"ldap\w+",
}
"""Programs by the option that has their password, which does not say so."""
_SHORT = re.compile(
    "|".join(
        rf"\b(?:{programs})\b(?:\s{{1,9}}(?!{option})\S{{1,200}}){{0,20}}?\s{{1,9}}{option}\s{{0,9}}['\"]?"
        r"(?=\S{0,80}[A-Za-z])[^\s-]"
        for option, programs in _SHORT_OPTIONS.items()
    )
)
_IN_WORDS = re.compile(
    r"(?<![\w-])([A-Za-z][\w-]{0,60})['\"]?\]?(?::\s*|\s?=\s?)['\"]?"
    r"(?:((?=\S{0,80}\d)(?=\S{0,80}[A-Za-z])\S{6})|(?<=['\"])([^\s'\"]{8,200})(?=['\"]))"
)
"""A name and what looks made by a machine or is a word in quotes: in a header, in JSON, in a program, in the
words of a connection."""
_OF_CONTENT = {
    "checksum",
    "commit",
    "digest",
    "fingerprint",
    "hash",
    "ref",
    "rev",
    "revision",
    "sha",
    "version",
}
"""In a key whose hexadecimal digits name a content; behind any other key they may be one of wandb."""
_MADE = re.compile(
    r"\b(?:[rs]k-(?:[a-z0-9]{1,40}-){0,8}\w{16}|sk-(?:admin|ant|None|or|proj|svcacct)-[\w-]{16}|gh[oprsu]_\w{20}|github_pat_\w{20}|glpat-[\w-]{16}|hf_[A-Za-z0-9]{20}"
    r"|npm_\w{20}|gsk_\w{16}|r8_\w{20}|dop_v1_\w{20}|[rs]k_(?:live|test)_\w{16}|SG\.[\w-]{16,80}\.[\w-]{16}"
    r"|(?:pypi|nvapi|pplx|tvly|xai|xapp|csk)-[\w-]{16}|\d{8,12}:AA[\w-]{30}"
    r"|wandb_v\d{1,3}_\w{20}|local-[0-9a-f]{40}\b|(?:lsv2_\w\w|api_org)_\w{20}|dapi[0-9a-f]{32}|hvs\.[\w-]{20}"
    r"|dp\.(?:pt|st|ct|sa)\.[\w-]{20}|fw_\w{20}|dckr_pat_\w{20}|shp(?:at|ca|pa|ss)_\w{20}|lin_api_\w{20}"
    r"|(?:tskey|figd|ATATT3)[\w-]{20}|ya29\.[\w-]{20}|GOCSPX-[\w-]{20}|\w{3}8Q~[\w~.-]{30}|AGE-SECRET-KEY-1\w{20}"
    r"|xox[a-z]-[\w-]{10}|A[KS]IA[A-Z0-9]{16}\b|AIza[\w-]{30}|eyJ[\w-]{8,}\.[\w-]{2,}\.)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\bhooks\.slack\.com/services/\w|/api/webhooks/\d+/\w"
    r"|/webhookb2/\w|/hooks?/\w{20}|/bot/v2/hook/[\w-]{20}|/bot\d{8,12}:AA[\w-]{30}|\b[ps]k-lf-[0-9a-f]{8}-"
    rf"|(?<![\w./-])(?!(?:checkpoint|md5|run|{'|'.join(sorted(_OF_CONTENT))})\d*[_-])[A-Za-z]\w{{1,11}}[_-]"
    r"(?=[A-Za-z]{0,60}\d{1,20}[A-Za-z]{1,60}\d)[A-Za-z0-9]{20,200}(?![\w./-])"
)
"""Tokens that are known by their own form, whatever their key is called; the last form is that of many: a
short name and a long run of letters with digits between them. Bounded: a text is read once."""
_LOGIN = re.compile(
    r"\b(?:login|password)\s{1,9}(?:--?[\w=-]{1,40}\s{1,9}){0,4}(?=\S{0,80}\d)(?=\S{0,80}[A-Za-z])\S{20}"
    r"|\bmachine\s{1,9}\S{1,80}\s{1,9}login\s{1,9}\S{1,80}\s{1,9}password\s{1,9}\S"
)
"""`wandb login KEY` and a line of netrc: a key without a form, such as 40 hexadecimal digits."""
_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_RANDOM = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)(?:[A-Za-z0-9]{32,100}|[A-Za-z0-9+][A-Za-z0-9+/]{39})")
"""A commit or a checksum, which is hexadecimal, has no capitals or no small letters."""
_RUNS = re.compile(r"[A-Z]+|[a-z]+|\d+")
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)")
_USER = re.compile(r"(?:^|\s)(?:-[uU]|--(?:proxy-)?user)[\s=]*(?=\S*[A-Za-z])[^\s:-][^\s:%]{0,80}[:%][^\s:]")
"""The user and password of curl or smbclient; a program that runs as user and group has numbers there."""
_USER_OPTIONS = {"-u", "-U", "--user", "--proxy-user"}
_HEADER = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)+|Authorization|Cookie")
_LOOKS_MADE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])\S{6}")
_LEAST_REPEATED = 6
"""Characters of a value that is also looked for inside of others; shorter ones are part of too much."""


def secrets_of(tree: DictConfig) -> dict[Place, Any]:
    """The secret values of a tree that has its interpolations, by their places."""
    raw = OmegaConf.to_container(tree, resolve=False)
    resolved = OmegaConf.to_container(tree, resolve=True)
    values = [(place, value, _written_at(raw, place)) for place, value in _leaves(resolved)]
    named = _named_by_others(values)
    found = {
        place: value
        for place, value, source in values
        if value not in (None, "")
        and not isinstance(value, bool)
        and (_is_secret(place, value, source) or (place in named and isinstance(value, str)))
    }
    known = {str(value) for value in found.values()}
    long = [value for value in known if len(value) >= _LEAST_REPEATED]
    for place, value, source in values:
        refers = isinstance(value, str) and "${" in str(source)
        if refers and (value in known or any(one in value for one in long)):
            found[place] = value
    return found


def masked(container: Any, secrets: Mapping[Place, Any]) -> Any:
    """A copy of a container of plain values with `MASK` at these places; others are passed over."""
    return _with(container, dict.fromkeys(secrets, MASK), ())


def unmasked(container: Any, secrets: Mapping[Place, Any]) -> Any:
    """The inverse: a copy with the values in their places."""
    return _with(container, secrets, ())


def masked_places(container: Any) -> list[Place]:
    """Where a container says `MASK`."""
    return [place for place, value in _leaves(container) if value == MASK]


def hidden(text: str, secrets: Mapping[Place, Any]) -> str:
    """`text` without the secret values that are long enough to be recognised in it, the longest first."""
    values = {part for value in secrets.values() for part in (str(value), *_parts(str(value)))}
    for value in sorted((one for one in values if len(one) >= _LEAST_REPEATED), key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def mask_in_texts(secrets: Mapping[Place, Any]) -> None:
    """Keep these values, variables that are named like a secret, and secret parts of both and of any other
    variable (an address with a password) out of texts for people.

    A value that only comes from the environment may be a folder or a word, which texts go on to show; it is
    kept out if it looks made by a machine.
    """
    named = {str(value) for place, value in secrets.items() if _is_secret(place, value, None)}
    others = set(map(str, secrets.values())) - named
    variables = {value for name, value in os.environ.items() if names_secret(name)}
    whole = named | {one for one in others if "/" not in one and _is_made(one)}
    whole |= {one for one in variables if not one.startswith(("/", "~", ".")) and _is_made(one)}
    values = {*whole, *(part for one in (*named, *others, *os.environ.values()) for part in _parts(one))}
    forms = {form for value in values for form in _forms(value)}
    keep_secret(one for one in forms if len(one) >= _LEAST_REPEATED and (len(one) > 8 or not one.isdecimal()))


def _forms(value: str) -> tuple[str, ...]:
    """As itself, as an address has it, and in JSON."""
    return value, quote(value, safe=""), unquote(value), json.dumps(value)[1:-1]


def _is_made(text: str) -> bool:
    """Whether a text looks like one that a machine made: no words, no number."""
    return len(text.split()) == 1 and _LOOKS_MADE.match(text) is not None


def _parts(text: str) -> Iterator[str]:
    """What is secret in a longer text: a client quotes an address without its password, or the key alone."""
    yield from _PASSWORD.findall(text)
    yield from (value.strip("'\",;") for value in _AFTER_SCHEME.findall(text))
    for name, value in _QUERY.findall(text):
        if names_secret(name) or name.lower() in _SIGNATURES:
            yield value
    for found in _IN_COMMAND.finditer(text):
        if names_secret(found[1] or found[2]):
            yield text[found.end() :].split(maxsplit=1)[0].strip("'\"")
    for found in _SHORT.finditer(text):
        yield text[found.end() - 1 :].split(maxsplit=1)[0].strip("'\"")
    for found in _in_words(text):
        yield re.split(r"[\s'\",;&]", text[found.start(found.lastindex or 1) :], maxsplit=1)[0]
    for found in _MADE.finditer(text):
        yield re.split(r"[^\w.-]", text[found.start() :], maxsplit=1)[0].rstrip(".")


def shown_tree(tree: DictConfig) -> DictConfig:
    """A tree with its interpolations, in which what is secret is masked and not written as one of them."""
    raw: Any = OmegaConf.to_container(tree, resolve=False)
    found = secrets_of(tree).items()
    plain = {place: value for place, value in found if "${" not in str(_written_at(raw, place))}
    shown: DictConfig = OmegaConf.create(masked(raw, plain))
    return shown


def written(place: Place) -> str:
    """A place as a key of the command line."""
    return ".".join(map(str, place))


def _is_secret(place: Place, value: Any, raw: Any) -> bool:
    if _from_environment(raw):
        return isinstance(value, str) or not _is_core(place)
    if any(map(_names_always, place)):
        return isinstance(value, str) or not _is_core(place)
    if not isinstance(value, str):
        return False
    below = (place[: depth + 1] for depth, part in enumerate(place) if _names_token(part))
    if _HEX.fullmatch(value) and not any(_OF_CONTENT & set(_words(part)) for part in place):
        return True
    return any(not _is_core(one) for one in below) or _holds_secret(value)


def _holds_secret(text: str) -> bool:
    """Whether an address, a header, an option or a name in it has a secret, or it is known to be one."""
    named = [variable or option for variable, option in _IN_COMMAND.findall(text)]
    named += ["".join(pair) for pair in _HEADERS.findall(text)]
    known = any(one.search(text) for one in (_IN_ADDRESS, _IN_HEADER, _MADE, _USER, _SHORT, _LOGIN))
    found = known or any(map(names_secret, named)) or any(map(_is_random, text.split()))
    return found or next(_in_words(text), None) is not None


def _in_words(text: str) -> Iterator[re.Match[str]]:
    """Names of secrets with their values; `"key": "word"` in the JSON of a prompt is no secret."""
    for found in _IN_WORDS.finditer(text):
        if names_secret(found[1]) and (found[2] or _names_always(found[1]) or len(_words(found[1])) > 1):
            yield found


def _is_random(word: str) -> bool:
    """Whether capitals, small letters and digits alternate as by chance: a key without a form of its own."""
    return _RANDOM.fullmatch(word) is not None and 2 * len(_RUNS.findall(word)) >= len(word)


def _named_by_others(values: Iterable[tuple[Place, Any, Any]]) -> set[Place]:
    """Places of what another value names: the item behind an option or a header, `value` beside `name`."""
    texts = {place: value for place, value, _ in values if isinstance(value, str)}
    found = set[Place]()
    for place, text in texts.items():
        *above, last = place
        if isinstance(last, int):
            behind = (*above, last + 1)
            pair = last == 0 and (*above, 2) not in texts
            if (value := texts.get(behind)) is not None and _names_next(text, value, pair):
                found.add(behind)
        elif last in ("name", "key", "header") and names_secret(text):
            found.add((*above, "value"))
    return found | _behind_short(texts)


def _behind_short(texts: Mapping[Place, str]) -> set[Place]:
    """Items of a command in a list that are a program's password: `[sshpass, -p, PASSWORD]`."""
    lists: dict[Place, list[Place]] = {}
    for place in texts:
        if isinstance(place[-1], int):
            lists.setdefault(place[:-1], []).append(place)
    found = set()
    for places in lists.values():
        ends = list(accumulate(len(texts[place]) + 1 for place in places))
        for match in _SHORT.finditer(" ".join(texts[place] for place in places)):
            found.add(places[bisect_right(ends, match.end() - 1)])
    return found


def _names_next(text: str, value: str, pair: bool) -> bool:
    """Whether an item of a list says that the next one is a secret: an option, or the header of a pair."""
    if text in _USER_OPTIONS:
        return _USER.match(f"{text} {value}") is not None
    if option := _OPTION.fullmatch(text):
        return names_secret(option[1]) and not value.startswith("-") and not value.isdecimal()
    made = _HEADER.fullmatch(text) or _LOOKS_MADE.match(value)
    return pair and made is not None and len(text.split()) == 1 and names_secret(text)


def names_secret(name: str) -> bool:
    """Whether a variable's name says that its value is a secret."""
    return _names_always(name) or _names_token(name)


@lru_cache(maxsize=4096)  # a tree has some hundred names, and a start looks at it three times
def _names_always(part: str | int) -> bool:
    words = _words(part)
    return bool(_ALWAYS & set(words)) or any(map(_JOINED.fullmatch, words))


@lru_cache(maxsize=4096)
def _names_token(part: str | int) -> bool:
    words = _words(part)
    if not words or words[-1] in _WHERE:
        return False
    of_keys = any(a in _OF_KEYS and b in ("key", "keys") for a, b in pairwise(words))
    of_tokens = bool(_TOKENS & set(words)) or any(map(_JOINED_TOKEN.fullmatch, words))
    return of_keys or of_tokens or words[-1] in _LAST


def _from_environment(raw: Any) -> bool:
    """Whether a value is written as one of the environment, and the variable is there."""
    names = _VARIABLE.findall(str(raw)) if isinstance(raw, str) else []
    return any(name in os.environ or "$" in name for name in names)


@lru_cache(maxsize=4096)  # a tree has some hundred names, and a start looks at it three times
def _words(part: str | int) -> tuple[str, ...]:
    """`hfToken`, `HFToken`, `HF_TOKEN` and `hf-token` are the words hf and token."""
    apart = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3 \2\4", str(part))
    return tuple(re.findall(r"[a-z]+", apart.lower()))


def _is_core(place: Place) -> bool:
    """Whether a model of the configuration has this key, so that its name is known to be none of a secret."""
    *parents, name = (part for part in place if not isinstance(part, int))  # an item is as its list
    if place[0] == "environments" and name == "key":  # of an environment's server; the section is open
        return True
    return str(name) in fields_at(Config, parents)


def _leaves(node: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(value, (*place, key))
    else:
        yield place, node


def _written_at(raw: Any, place: Place) -> Any:
    """What the file says for a value: itself, or the `${...}` above it from which it comes."""
    for part in place:
        if isinstance(raw, dict):
            raw = raw.get(part)
        elif isinstance(raw, list) and isinstance(part, int) and part < len(raw):
            raw = raw[part]
        else:
            break
    return raw


def _with(node: Any, values: Mapping[Place, Any], place: Place) -> Any:
    if place in values:
        return values[place]
    if isinstance(node, dict):
        return {key: _with(value, values, (*place, key)) for key, value in node.items()}
    if isinstance(node, list):
        return [_with(value, values, (*place, index)) for index, value in enumerate(node)]
    return node
