"""The program that plays a seat, as coroutines of the worker: a chat that goes on until no tool is called.

verifiers' own `null` harness does the same in a process of its own for each rollout, which `uv` installs. Its
base class says that what counts is that every call of the model goes through `endpoint`.
"""

import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils import mcp

ID = "pipelinerl_inproc"
__all__ = ["InProcessHarness"]


class InProcessConfig(vf.HarnessConfig):
    id: str = ID


class InProcessHarness(vf.Harness[InProcessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Play until the model answers without a call. Raises RuntimeError for a call that was refused."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        urls = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            tools, dispatch, servers = await mcp.connect_mcp({"mcpServers": urls}, stack)
            body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
            while calls := await _ask(http, endpoint, secret, body):
                for call in calls:
                    asked = call["function"]
                    content = await _call(servers, dispatch, asked["name"], asked["arguments"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _ask(
    http: aiohttp.ClientSession, endpoint: str, secret: str, body: dict[str, Any]
) -> list[dict[str, Any]]:
    """The tool calls of the model's reply, which is added to the messages."""
    url, head = f"{endpoint}/chat/completions", {"Authorization": f"Bearer {secret}"}
    async with http.post(url, json=body, headers=head, timeout=aiohttp.ClientTimeout(None)) as answer:
        if answer.status != 200:
            raise RuntimeError(f"a call was answered with status {answer.status}: {await answer.text()}")
        message = (await answer.json())["choices"][0]["message"]
    body["messages"].append(message)
    return message.get("tool_calls") or []


async def _call(servers: Any, dispatch: Any, name: str, arguments: str) -> Any:
    """What a tool answers; what it cannot be asked is said to the model, as verifiers' own programs do."""
    if name not in dispatch:
        return f"Error: unknown tool {name!r}"
    try:
        return await mcp.call_mcp(servers, dispatch, name, json.loads(arguments or "{}"))
    except Exception as error:
        return f"Error: {error}"


# verifiers looks for a harness among modules without a package.
sys.modules[ID] = sys.modules[__name__]
