"""Agents that are commands: a process group of their own for each episode, killed with it.

The command finds the policy in its environment, the task on its standard input and in a file, and says what the episode
earned in the last line of its standard output, as JSON. Its working folder is its own, and is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import orjson

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
USUAL_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "USER")


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
        pass_env: further variables that it gets from this process.
    """

    def __init__(self, words: Sequence[str], pass_env: Sequence[str]) -> None:
        self._words = tuple(words)
        self._env_names = (*USUAL_ENV, *pass_env)

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
                while not _has_ended(process):
                    await asyncio.sleep(POLL_S)
                # What the command left running in its group would keep its output open.
                _kill(process)
                async with asyncio.timeout(LEAVE_S):
                    written, shown = await output, (await errors).decode(errors="replace")
        except TimeoutError as error:
            raise AgentFailure(
                "ended, and something that it started in another process group holds its output open"
            ) from error
        finally:
            _kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
        if process.returncode:
            raise AgentFailure(
                f"ended with status {process.returncode}: {shown.strip() or 'it wrote no error'}"
            )
        return read_outcome(_last_line(written))

    def _start(
        self, words: Sequence[str], context: AgentContext, task_file: Path
    ) -> subprocess.Popen[bytes]:
        with task_file.open("rb") as task:
            return subprocess.Popen(
                words,
                stdin=task,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment(context, task_file),
                cwd=task_file.parent,
                start_new_session=True,
            )

    def _environment(self, context: AgentContext, task_file: Path) -> dict[str, str]:
        kept = {name: os.environ[name] for name in self._env_names if name in os.environ}
        return {
            **kept,
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


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a command has ended. It stays a zombie, so that the number of its group is nobody else's."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, options) is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command's process group, its leader included."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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
        return orjson.loads(lines[-1])
    except orjson.JSONDecodeError as error:
        raise AgentFailure(f"wrote a last line that is no JSON: {error}") from error
