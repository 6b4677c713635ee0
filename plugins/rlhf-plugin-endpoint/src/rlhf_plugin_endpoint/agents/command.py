"""Agents that are commands: a process for each episode, killed with it and with the run, and all that it started.

The command finds the policy in its environment, the task on its standard input and in a file, and says what the episode
earned in the last line of its standard output, as JSON. Its working folder is its own, and is removed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from rlhf_core.outside.json_reader import BrokenJson, parse_json
from rlhf_guard.processes.kept import end_kept, start_kept
from rlhf_guard.processes.variables import worker_variables

from .context import AgentContext
from .outcome import AgentFailure, AgentOutcome, read_outcome

KEPT_BYTES = 1 << 20
"""Bytes of the end of a command's output that are kept."""
SHOWN_BYTES = 2000
"""Bytes of the end of a command's errors that a message shows."""
POLL_S = 0.02
"""Seconds between two looks at whether a command has ended."""
LEAVE_S = 5.0
"""Seconds in which the output of a command that has ended has to end too."""


def with_whole_paths(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command whose files are named from the root: it is started in a folder of its own, where a path from the
    folder of the run would lead nowhere."""
    # A program without a slash is looked for on PATH, whatever is in the folder.
    return tuple(
        os.path.abspath(word) if (index or "/" in word) and os.path.isfile(word) else word
        for index, word in enumerate(words)
    )


class CommandAgent:
    """Plays episodes by running a command.

    Args:
        words: the command, with fields in braces.
        pass_env: variables that it gets from this process beside the usual ones.
        says_outcome: False: others judge the episodes, and its output, which may be the policy's words, is no outcome.
    """

    def __init__(
        self, words: Sequence[str], pass_env: Sequence[str], *, says_outcome: bool = True
    ) -> None:
        self._words = tuple(words)
        self._says_outcome = says_outcome
        self._variables = worker_variables(pass_env)

    async def play(self, context: AgentContext) -> AgentOutcome:
        """Return what the command says of the episode.

        Raises:
            AgentFailure: it cannot be started, ended with an error, or its last line is no outcome.
        """
        folder = Path(tempfile.mkdtemp(prefix="rlhf-agent-"))
        try:
            return await self._play(context, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def close(self) -> None:
        """Do nothing: no command outlives its episode."""

    async def _play(self, context: AgentContext, folder: Path) -> AgentOutcome:
        task = orjson.dumps(_task(context), option=orjson.OPT_NON_STR_KEYS, default=str)
        task_file = folder / "task.json"
        task_file.write_bytes(task)
        words = [_filled(word, _fields(context, task_file)) for word in self._words]
        try:
            process = self._start(words, context, task_file)
        except (OSError, ValueError) as error:
            raise AgentFailure(f"cannot be started: {words[0]!r}: {error}") from error
        try:
            async with (
                _tail(process.stdout, KEPT_BYTES) as output,
                _tail(process.stderr, SHOWN_BYTES) as errors,
            ):
                while process.poll() is None:
                    await asyncio.sleep(POLL_S)
                # All that the command left running is gone with its keeper, and holds its output no more.
                async with asyncio.timeout(LEAVE_S):
                    written, shown = await output, (await errors).decode(errors="replace")
        except TimeoutError as error:
            raise AgentFailure(
                f"ended, and its output did not within {LEAVE_S:g} s: something that it started holds it open"
            ) from error
        finally:
            await asyncio.shield(asyncio.to_thread(end_kept, process))
        if process.returncode:
            raise AgentFailure(
                f"ended with status {_status(process.returncode)}: {shown.strip() or 'it wrote no error'}"
            )
        return read_outcome(_last_line(written) if self._says_outcome else None)

    def _start(
        self, words: Sequence[str], context: AgentContext, task_file: Path
    ) -> subprocess.Popen[bytes]:
        with task_file.open("rb") as task:
            return start_kept(
                words,
                task=task,
                folder=task_file.parent,
                variables=self._environment(context, task_file),
            )

    def _environment(self, context: AgentContext, task_file: Path) -> dict[str, str]:
        return {
            **self._variables,
            "OPENAI_BASE_URL": context.base_url,
            "OPENAI_API_BASE": context.base_url,
            "OPENAI_API_KEY": context.api_key,
            "OPENAI_MODEL": context.model,
            "ANTHROPIC_BASE_URL": context.root_url,
            "ANTHROPIC_API_KEY": context.api_key,
            "ANTHROPIC_AUTH_TOKEN": context.api_key,
            "ANTHROPIC_MODEL": context.model,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "RLHF_MODEL": context.model,
            "RLHF_SEED": str(context.seed),
            "RLHF_TASK": str(task_file),
            "RLHF_UID": context.uid,
        }


def _status(code: int) -> int:
    """Return the command's exit status; minus the number of the signal that ended it."""
    return 128 - code if code > 128 else code


def _task(context: AgentContext) -> dict[str, Any]:
    return {
        "row": dict(context.row),
        "messages": [dict(message) for message in context.messages],
        "prompt": context.prompt,
        "seed": context.seed,
        "uid": context.uid,
        "model": context.model,
    }


def _fields(context: AgentContext, task_file: Path) -> Mapping[str, str]:
    return {
        "base_url": context.base_url,
        "root_url": context.root_url,
        "api_key": context.api_key,
        "model": context.model,
        "seed": str(context.seed),
        "task": str(task_file),
        "prompt": context.prompt,
    }


def _filled(word: str, fields: Mapping[str, str]) -> str:
    """Return a word with its fields filled in; other braces stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda found: fields.get(found[1], found[0]), word)


@asynccontextmanager
async def _tail(pipe: IO[bytes] | None, count: int) -> AsyncIterator[asyncio.Task[bytes]]:
    """Read a pipe to its end, and give its last bytes as a task; at exit the pipe is closed, whoever else holds it."""
    assert pipe is not None
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)

    async def read() -> bytes:
        kept = b""
        while data := await stream.read(65536):
            kept = (kept + data)[-count:]
        return kept

    reading = loop.create_task(read())
    try:
        yield reading
    finally:
        transport.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _last_line(output: bytes) -> Any:
    """Return the value of the last line that is not empty, or None if it is no JSON object."""
    lines = output.strip().splitlines()
    if not lines or not lines[-1].lstrip().startswith(b"{"):
        return None
    try:
        return parse_json(lines[-1], finite=True)
    except BrokenJson as error:
        raise AgentFailure(f"wrote a last line that is no JSON: {error}") from error
