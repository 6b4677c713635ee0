"""A task of Harbor as a conversation: the instruction, commands of the policy with what they print, the verifier.

The verifier is not in the machine until the policy is done, and no file or process of the policy stands in its place.
An answer without a command ends the policy's part.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError, DataError, RolloutError
from rlhf_core.contracts import Action, EnvironmentManifest, Observation, StepResult, Stop, Task
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .config import HarborConfig
from .containers import ContainerMachine
from .folders import HarborFolder, read_folder, task_folders
from .host import HostMachine
from .machine import Machine, Ran
from .rewards import MAX_BYTES, chosen_reward, named_rewards, plain_reward

_FENCED = re.compile(r"```(?:bash|sh|shell)\s*\n(.*?)```", flags=re.DOTALL)
_HOW = (
    "Write a command as a block that begins with ```bash and ends with ```. You then read what it prints. Each command "
    "is a new shell: only files stay. Answer without a command when you are done."
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in a new shell and return what it prints. Only files stay.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "what bash runs"}},
            "required": ["command"],
        },
    },
}
_TAIL_CHARS = 2_000


class HarborBridge:
    """One episode."""

    manifest = EnvironmentManifest(deterministic=False)

    def __init__(self, config: HarborConfig) -> None:
        self._config = config
        self._task: HarborFolder | None = None
        self._machine: Machine | None = None
        self._left_s = 0.0
        self._metrics: dict[str, float] = {}
        self._is_verified = False

    def tasks(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the task folders of a split, each with its name as the key.

        Raises:
            KeyError: there are none.
            DataError: a folder is no task, or one that cannot be honoured here.
        """
        paths = {"train": self._config.train, "eval": self._config.eval}.get(split, ())
        if not paths:
            raise KeyError(split)
        rows = []
        for path in task_folders(paths):
            task = read_folder(path, self._config.variables)
            _require_machine(task, self._config)
            rows.append({"key": f"{task.name}@{path.name}", "folder": str(path)})
        return rows

    async def reset(self, task: Task, seed: int) -> Observation:
        """Make the machine of the task's folder, and return its instruction."""
        folder = task.row.get("folder")
        if not isinstance(folder, str):
            raise RolloutError(
                "the task has no column folder; expected tasks of the options train and eval",
                code="environment/no-task",
            )
        self._task = await asyncio.to_thread(read_folder, Path(folder), self._config.variables)
        _require_machine(self._task, self._config)
        self._left_s = self._task.agent_s
        self._machine = (
            ContainerMachine(self._task, self._config.engine)
            if self._config.engine
            else HostMachine(self._task, self._config)
        )
        try:
            await self._machine.start()
        except RolloutError as error:
            raise self._named(error) from error
        if self._config.form == "tools":
            messages = ({"role": "user", "content": self._task.instruction},)
            return Observation(messages=messages, tools=(_TOOL,))
        return Observation(
            messages=({"role": "user", "content": f"{self._task.instruction}\n\n{_HOW}"},)
        )

    async def step(self, action: Action) -> StepResult:
        """Run the answer's commands; without one, or at the end of turns or time, run the verifier."""
        commands = self._commands(action)
        messages = [await self._answer(command) for command in commands]
        is_last = action.turn + 1 >= self._config.max_turns or self._left_s <= 0
        if not commands or is_last or action.stop is Stop.LENGTH:
            return await self._verified()
        return StepResult(observation=Observation(messages=tuple(messages)), metrics=self._metrics)

    async def episode_rewards(self) -> Mapping[str, float]:
        """Return the verifier's reward of an episode that a limit of the run ended."""
        return {} if self._is_verified else (await self._verified()).rewards

    async def close(self) -> None:
        """Remove the machine."""
        if self._machine is not None:
            await self._machine.close()

    def _commands(self, action: Action) -> list[Mapping[str, Any]]:
        """Return the commands of an answer, as messages without a content; ``command`` is None where there is none."""
        if self._config.form == "fenced":
            found = _FENCED.findall(action.text if action.content is None else action.content)
            return [{"role": "user", "command": found[-1]}] if found else []
        commands: list[Mapping[str, Any]] = []
        for call in action.tool_calls:
            try:
                command = parse_json(call.arguments)["command"] if call.name == "bash" else None
            except (BrokenJson, KeyError, TypeError):
                command = None
            message = {"role": "tool", "tool_call_id": call.id, "name": call.name}
            commands.append({**message, "command": command})
        return commands

    async def _answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the message with what its command prints."""
        rest = {name: value for name, value in message.items() if name != "command"}
        command = message["command"]
        if (
            not isinstance(command, str)
            or "\0" in command
            or len(command.encode("utf-8", "replace")) > 100_000
        ):
            return {
                **rest,
                "content": "error: expected a call of bash with a command, a text of at most 100 000 bytes",
            }
        assert self._task is not None
        seconds = min(self._config.command_s, self._left_s)
        if seconds <= 0:
            return {**rest, "content": "error: the time of this task is used up"}
        ran = await self._ran(command, seconds, self._task.variables, self._config.output_chars)
        return {**rest, "content": _shown(ran, seconds)}

    async def _ran(
        self, command: str, seconds: float, variables: Mapping[str, str], most: int
    ) -> Ran:
        assert self._machine is not None
        clean = command.encode("utf-8", "replace").decode()
        began = asyncio.get_running_loop().time()
        try:
            return await self._machine.run(clean, seconds, variables, most)
        except RolloutError as error:
            raise self._named(error) from error
        finally:
            self._left_s -= asyncio.get_running_loop().time() - began
            self._metrics["commands"] = self._metrics.get("commands", 0.0) + 1.0

    async def _verified(self) -> StepResult:
        assert self._task is not None
        assert self._machine is not None
        self._is_verified = True
        task = self._task
        metrics = dict(self._metrics)
        variables = {**task.variables, **task.verifier_variables}
        try:
            await self._machine.place_tests(task.path / "tests")
            ran = await self._machine.run(
                "bash /tests/test.sh", task.verifier_s, variables, _TAIL_CHARS
            )
            rewards = await self._written(self._machine)
            if rewards is None and self._config.missing_reward is None:
                raise RolloutError(
                    f"the verifier wrote no reward; it printed: {_shown(ran, task.verifier_s)!r}",
                    code="environment/no-reward",
                )
            metrics["verifier/missing"] = float(rewards is None)
            if rewards is None:
                reward = float(self._config.missing_reward or 0.0)
            else:
                reward = chosen_reward(rewards, self._config.reward_key)
                metrics |= {f"verifier/{name}": value for name, value in rewards.items()}
        except RolloutError as error:
            raise self._named(error) from error
        return StepResult(rewards={"verifier": reward}, done=True, metrics=metrics)

    async def _written(self, machine: Machine) -> dict[str, float] | None:
        raw = await machine.reward_file("reward.txt", MAX_BYTES)
        if raw is not None:
            return plain_reward(raw)
        raw = await machine.reward_file("reward.json", MAX_BYTES)
        return named_rewards(raw) if raw is not None else None

    def _named(self, error: RolloutError) -> RolloutError:
        return error.with_text(f"{self._task.label if self._task else 'Harbor'}: {error}")


def _require_machine(task: HarborFolder, config: HarborConfig) -> None:
    """Refuse a task whose environment cannot be honoured, unless the options say to do without."""
    if config.engine and config.host:
        raise ConfigError(
            "harbor: expected one of engine and host, got both", code="environment/engine-and-host"
        )
    if config.engine:
        if not task.image and task.dockerfile is None:
            raise DataError(
                f"{task.label}: expected environment/Dockerfile or docker_image for {config.engine}",
                code="environment/unsupported-task",
            )
        return
    if not config.host:
        wanted = task.image or "the image of environment/Dockerfile"
        raise DataError(
            f"{task.label}, {task.path}: needs {wanted}, and there is no engine for containers. Give engine (docker, "
            "podman), or host = true to run it in a sandbox of this machine with this machine's programs",
            code="environment/no-container-engine",
        )


def _shown(ran: Ran, seconds: float) -> str:
    """Return what a command printed, with a last line that says how it ended where that is not plain."""
    notes = []
    if ran.is_cut:
        notes.append("(more output is left out)")
    if ran.is_late:
        notes.append(f"(killed after {seconds:g} s)")
    elif ran.status:
        notes.append(f"(exit status {ran.status})")
    return "\n".join(filter(None, [ran.output.rstrip(), *notes])) or "(no output)"
