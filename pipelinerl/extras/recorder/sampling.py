"""What a recorded program may say about sampling; values, no I/O. Called for each of its requests.

The log-probabilities that are trained on must be those of the policy as the trainer computes it, and the
attempts of a group must differ by chance alone. So the run decides how tokens are drawn; the program decides
where its answer ends.
"""

from collections.abc import Mapping
from typing import Any

from pipelinerl.engines.llm_engine import EngineLLM, several
from pipelinerl.engines.openai.protocol import BadRequest
from pipelinerl.engines.requests import of_run


def refuse(others: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Raise BadRequest for the first of `overridden`."""
    for name, value in others.items():
        raise BadRequest(
            f"{name} {value!r} is not the run's {of_run(name, parameters)!r}; "
            "leave it out, or open the session with override=True to have it ignored"
        )


def bounded(asked: int | None, parameters: Mapping[str, Any]) -> int | None:
    """`max_tokens` of a call: what the program asks, at most what the run allows. Raises BadRequest."""
    if asked is not None and asked < 1:
        raise BadRequest(f"max_tokens {asked} asks for no token; ask for 1 or more")
    most = parameters.get("max_tokens")
    return min((one for one in (asked, most) if one is not None), default=None)


def with_ends(llm: EngineLLM, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The run's parameters, with the ends of the program's answer added to the run's."""
    parameters = dict(llm.parameters)
    for name, kind in (("stop", str), ("stop_token_ids", int)):
        sent = asked.get(name) or []
        both = [
            *several(name, parameters.get(name), kind),
            *([sent] if isinstance(sent, str) else sent),
        ]
        if both:
            parameters[name] = list(dict.fromkeys(both))
    return parameters
