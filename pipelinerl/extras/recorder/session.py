"""One rollout's recording: its calls to the engine, the texts made of them, the program that asks.

`site` hands the program's requests to `ask`; the rollout policy holds the `Session`.
"""

import asyncio
import contextlib
import contextvars
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import aiohttp
from yarl import URL

from pipelinerl.async_llm import (
    RetryableAbortedCompletionError,
    cut_call,
    llm_async_generate,
    make_training_text,
)
from pipelinerl.base.child import wrapped
from pipelinerl.base.guard import GroupGuard, kill_marked
from pipelinerl.base.waits import WaitExpired, wait_for
from pipelinerl.config.secrets import names_secret
from pipelinerl.dialogues import joined as join
from pipelinerl.engines.answers import LiveAnswer
from pipelinerl.engines.errors import AbortedCompletion, EngineUnavailable
from pipelinerl.engines.llm_call import LLMCall, Prompt
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.rollouts import TrainingText

END_DEADLINE_S = 10.0
"""For calls and programs that were given up to be gone."""
LEFT_S = 1.0
"""For what a program left running to end by itself, as `tee` does behind its last line."""
ENGINE_FAILURES = (EngineUnavailable, AbortedCompletion, RetryableAbortedCompletionError)
"""What is no fault of the program; the rollout may be tried again."""

# The dialogue up to a reply, as far as it decides the next prompt.
DialogueKey = tuple[str, ...]


PASSED_ON = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_.*|TMPDIR|TEMP|TMP|XDG_.*_HOME|XDG_.*_DIR"
    "|PYTHON.*|VIRTUAL_ENV|CONDA_PREFIX|LD_LIBRARY_PATH|SSL_CERT_.*|OMP_.*|MKL_.*|TOKENIZERS_PARALLELISM"
    "|HF_HOME|HF_HUB_OFFLINE|SYSTEMROOT"
)
"""Variables of this process that a recorded program gets, unless their name is that of a secret."""


_GUARD = GroupGuard()
"""Of the programs that run: what they start does not ask to die with this process."""


class NoSession(LookupError):
    """A request to a session that has ended, or never was (HTTP 404)."""

    def __init__(self) -> None:
        super().__init__("no session has this token: it has ended, or never began")


class ProgramFailed(RuntimeError):
    """The program ended with an error or passed its deadline; one line."""


class Session:
    """What one program asks. Made by `recorder.session`."""

    def __init__(
        self,
        llm: EngineLLM,
        http: aiohttp.ClientSession,
        base_url: str,
        override: bool = False,
        api_key: str = "none",
    ) -> None:
        self.llm, self.base_url, self.override = llm, base_url, override
        self.api_key = api_key
        """What a request has to show, where other hosts reach the session; on the loopback interface any."""
        self.expired = False
        """Whether a program passed its deadline, and what it had said until then was kept."""
        self.responses: dict[str, list[dict[str, Any]]] = {}
        """Chats up to a response of `/v1/responses`, by its id."""
        self.failure: Exception | None = None
        """Of the last call that no engine answered; None once a call begun after this failure is answered."""
        self._http = http
        # By the order in which they were asked, which does not depend on who is answered first.
        self._answers: list[LLMCall | None] = []
        self._asked_before = 0
        """How many had been asked when `failure` came: an answer to one of them says nothing about it."""
        self._dialogues: dict[DialogueKey, LLMCall] = {}
        self._running: set[asyncio.Task[LLMCall]] = set()
        # Requests come in tasks of the site; ROLLOUT_ORIGIN is known where the session was opened.
        self._context = contextvars.copy_context()
        self._ended = False

    @property
    def calls(self) -> list[LLMCall]:
        """Calls that were answered, in the order in which they were asked."""
        return [call for call in self._answers if call is not None]

    @property
    def anthropic_base_url(self) -> str:
        """What Anthropic's client takes for its base URL; it adds `/v1` itself."""
        return self.base_url.removesuffix("/v1")

    def texts(self, joined: bool = False) -> list[TrainingText]:
        """A text for each call; with `joined`, one for each dialogue whose prompts grew by appending.

        A joined text has several sampled spans, and everything between them is masked. Calls that do not
        append exactly stay texts of their own.
        """
        texts = []
        for call in self.calls:
            text = make_training_text(self.llm, call)
            if asked := call.llm_info.get("overridden"):
                text.metadata["overridden"] = asked
            if cut := call.llm_info.get("cut_short"):
                text.metadata["cut_short"] = cut
            if self.expired:
                text.metadata["expired"] = True
            texts.append(text)
        return join(texts) if joined else texts

    async def ask(
        self,
        llm: EngineLLM,
        prompts: Sequence[Prompt],
        max_tokens: int | None,
        overridden: dict[str, Any],
        live: LiveAnswer | None = None,
    ) -> list[LLMCall]:
        """The engine's answers to the prompts of one request, each remembered.

        `live` gets the tokens of the one prompt as they are sampled. If the session ends or the program hangs
        up after the first of them, what was sampled until then is remembered as an answer that was cut.
        Raises NoSession if the session has ended, or does meanwhile; otherwise as `llm_async_generate`.
        """
        if self._ended:
            raise NoSession
        tasks = [
            asyncio.create_task(
                self._call(len(self._answers) + index, llm, prompt, max_tokens, overridden, live),
                name=f"recorded call {len(self._answers) + index}",
                context=self._context,
            )
            for index, prompt in enumerate(prompts)
        ]
        self._answers += [None] * len(tasks)
        self._running.update(tasks)
        try:
            return list(await asyncio.gather(*tasks))
        except asyncio.CancelledError:
            current = asyncio.current_task()
            # Cancelled by `end`, and not because the program hung up.
            if self._ended and not (current is not None and current.cancelling()):
                raise NoSession from None
            raise
        finally:
            for task in tasks:
                task.cancel()
            self._running.difference_update(tasks)

    async def _call(
        self,
        place: int,
        llm: EngineLLM,
        prompt: Prompt,
        max_tokens: int | None,
        overridden: dict[str, Any],
        live: LiveAnswer | None,
    ) -> LLMCall:
        try:
            try:
                call = await llm_async_generate(llm, prompt, self._http, max_tokens, live)
            except asyncio.CancelledError:
                if live is None or not live.begun:
                    raise
                # The connection to the engine is closed by now, which aborts the request there.
                call = cut_call(llm, prompt, live)
                call.llm_info["cut_short"] = "session ended" if self._ended else "program hung up"
        except ENGINE_FAILURES as error:
            self.failure, self._asked_before = error, len(self._answers)
            raise
        if place >= self._asked_before:  # the program asked again, so it got over the failure
            self.failure = None
        if overridden:
            call.llm_info["overridden"] = overridden
        self._answers[place] = call
        return call

    def remember(self, key: DialogueKey, call: LLMCall) -> None:
        """`key` is the dialogue with the reply as the program was given it."""
        self._dialogues[key] = call

    def continued(self, llm: EngineLLM, key: DialogueKey, messages: list[dict[str, Any]]) -> Prompt | None:
        """The prompt of a dialogue whose beginning the engine has answered here, by appending ids.

        `key[0]` is not a message, `key[1 + i]` is `messages[i]`. None if no reply among the messages was
        given here, or the template cannot go on from one. For a thread: messages may be many and long.
        """
        known = dict(self._dialogues)  # calls are answered meanwhile
        ends = {len(dialogue) - 1 for dialogue in known}
        for end in sorted(ends.intersection(range(1, len(messages))), reverse=True):
            call = known.get(key[: end + 1])
            if call is not None:
                # The template alters replies, or what is new cannot fit; who renders it anew says so.
                with contextlib.suppress(ValueError):
                    return llm.continue_prompt(call, messages[end:], llm.context_size)
        return None

    async def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        at_deadline: Literal["fail", "keep"] = "fail",
    ) -> str:
        """Run a program that asks at `OPENAI_BASE_URL` or `ANTHROPIC_BASE_URL` and return what it printed.

        Its environment is `env`, both base URLs with their keys, `OPENAI_MODEL`, and of this process's what
        programs need to start (`PASSED_ON`): no keys of wandb, hubs and clouds, unless `env` names them. It
        is killed at the deadline and when the rollout is given up. What it started is killed with it, or when
        it ends; neither outlives this process, however that ends. Raises ProgramFailed with the last line of
        its errors. However the program ended, raises `failure` if there is one.

        With `at_deadline="keep"` a program that passes its deadline ends the session and has not failed: what
        it printed until then is returned, `expired` is true, and `texts` are those of the calls that the
        engines had answered by then.
        """
        guard = _GUARD.fileno()
        process = await asyncio.create_subprocess_exec(
            *wrapped(argv, guard),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**_passed_on(), **self._addresses(), **(env or {})},
            start_new_session=True,
            pass_fds=(guard,),
        )
        _GUARD.add(process.pid)
        out, err = bytearray(), bytearray()
        try:
            await wait_for(_talk(process, stdin, out, err), f"the program {argv[0]}", deadline_s)
        except WaitExpired as error:
            if at_deadline == "fail" or self.failure is not None:
                raise self.failure or ProgramFailed(str(error)) from None
            # Before the program is killed: a call that is answered meanwhile is late, however fast it dies.
            await self.end()
            self.expired = True
        finally:
            await _gone(process)
            _GUARD.discard(process.pid)
        if self.failure is not None and not self.expired:  # a program may end well with what it has
            raise self.failure
        if process.returncode and not self.expired:
            said = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise ProgramFailed(
                f"{argv[0]} ended with status {process.returncode}: {said or 'it said nothing'}"
            )
        return out.decode(errors="replace")

    def _addresses(self) -> dict[str, str]:
        """The variables by which clients of OpenAI and Anthropic find the session."""
        host = str(URL(self.base_url).host)
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.llm.model_name,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": self.api_key,
            # A proxy that is meant for others would be asked for this address too.
            "no_proxy": host,
        }

    async def end(self) -> None:
        """Later requests are refused; those under way are given up."""
        self._ended = True
        running = list(self._running)
        for task in running:
            task.cancel()
        gathered = asyncio.gather(*running, return_exceptions=True)
        await wait_for(gathered, "calls of a recorded session that ended", END_DEADLINE_S)


def _passed_on() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    return {name: value for name, value in found.items() if not names_secret(name)}


async def _talk(process: asyncio.subprocess.Process, stdin: str, out: bytearray, err: bytearray) -> None:
    """Hand over the input and collect what is printed, so that it is there when time is over too."""
    assert process.stdin and process.stdout and process.stderr

    async def collect(stream: asyncio.StreamReader, into: bytearray) -> None:
        while part := await stream.read(2**16):
            into += part

    async def feed(stream: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # a program need not read its input
            stream.write(stdin.encode())
            await stream.drain()
        stream.close()

    async def release() -> None:
        """End what holds the pipes of a program that has ended, which would keep its output open."""
        await _ended(process.pid)
        _, open_still = await asyncio.wait(heard, timeout=LEFT_S)
        if open_still:
            await _kill_left(process.pid)

    heard = [asyncio.ensure_future(collect(*one)) for one in ((process.stdout, out), (process.stderr, err))]
    await asyncio.gather(feed(process.stdin), *heard, release())
    await process.wait()


async def _ended(pid: int) -> None:
    """Until a child has ended: `wait` of asyncio's processes may wait for everybody who holds its pipes."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _kill_left(pid: int) -> None:
    kill = asyncio.to_thread(kill_marked, [pid])
    await wait_for(kill, "what a program left running to be killed", END_DEADLINE_S)


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Kill a process that still runs, with all of its session, and what it left running elsewhere."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await wait_for(process.wait(), "a program that was killed", END_DEADLINE_S)
    await _kill_left(process.pid)


def dialogue_key(template_kwargs: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> DialogueKey:
    """What decides the ids of a dialogue: arguments of the template, then each message."""
    # SDKs send a reply back with fields that are null in it; templates do not see those.
    shown = [{key: value for key, value in one.items() if value} for one in messages]
    return tuple(json.dumps(one, sort_keys=True) for one in (template_kwargs, *shown))
