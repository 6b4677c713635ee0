"""An environment of verifiers from options of a run: its taskset, who plays its roles, and where."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.env import default_agent_harness
from verifiers.v1.utils.loaders import env_config_type

from rlhf_core import ConfigError

from .chat_harness import HARNESS_ID
from .config import VerifiersConfig
from .origin import origin_of

Row = Mapping[str, Any]


class TasksetSetting:
    """Taskset, roles and options that all episodes of one environment share.

    Raises:
        ConfigError: there is no such taskset, or it refuses its options.
    """

    def __init__(self, config: VerifiersConfig) -> None:
        self._eval_tasks = config.eval_tasks
        try:
            self._options = vf.resolve_env_config(_settings(config))
            environment = self.environment()
        except Exception as error:  # Packages of others raise anything while they are imported.
            raise ConfigError(
                f"expected a taskset of verifiers in id, and its options in kwargs; {config.id!r} gave "
                f"{type(error).__name__}: {error}",
                code="environment/not-loadable",
            ) from error
        self._taskset = environment.taskset
        self._task_type = type(self._taskset).task_type()
        self._rows: Sequence[Row] | None = None
        self.title = f"{self._options.env_id} ({origin_of(type(self._taskset).__module__)})"
        """Taskset and versions, for messages."""
        hidden = [
            name
            for name, field in self._task_type.data_type().model_fields.items()
            if field.exclude
        ]
        if hidden:
            raise ConfigError(
                f"{self.title} leaves {', '.join(hidden)} out when it writes a task down; expected tasks that can be "
                "written and read again",
                code="environment/unsuitable",
            )

    def environment(self) -> Any:
        """Return a new environment, which serves one event loop."""
        return vf.load_environment(self._options)

    def task(self, data: Mapping[str, Any]) -> Any:
        """Return a task as verifiers makes it of what was written down."""
        return self._task_type(
            self._task_type.data_type().model_validate(data), self._options.taskset.task
        )

    def rows(self, split: str) -> Sequence[Row] | Iterator[Row]:
        """Return the tasks of a split as rows: a sequence, or an endless stream where the taskset has no end.

        Raises:
            KeyError: there is no such split.
        """
        if split not in ("train", "eval") or (split == "eval" and not self._eval_tasks):
            raise KeyError(split)
        count = self._eval_tasks
        if not self._taskset.bounded:
            tasks = iter(self._taskset)
            chosen = islice(tasks, count) if split == "eval" else islice(tasks, count, None)
            return map(_row, chosen)
        if self._rows is None:
            self._rows = [_row(task) for task in self._taskset]
        return self._rows[:count] if split == "eval" else self._rows[count:]


@cache
def setting_of(options: str) -> TasksetSetting:
    """Return the setting of a process for options as JSON."""
    return TasksetSetting(VerifiersConfig.model_validate(json.loads(options)))


def _row(task: Any) -> Row:
    return {"key": task.key, "task": task.data.model_dump(mode="json")}


def _settings(config: VerifiersConfig) -> Mapping[str, Any]:
    """Return the table ``env`` of verifiers, with what an author left open filled in for a run on this machine."""
    settings: dict[str, Any] = {**config.settings, "taskset": {**config.kwargs, "id": config.id}}
    kind = env_config_type(config.id, str(settings.get("id") or ""))
    roles = {
        name: field.default
        for name, field in kind.model_fields.items()
        if isinstance(field.default, vf.AgentConfig)
    }
    for name, author in roles.items():
        role = dict(settings.get(name) or {})
        if "runtime" not in author.model_fields_set:
            # verifiers' own default is a rented machine.
            role.setdefault("runtime", {"type": "subprocess"})
        if config.harness:
            role["harness"] = {"id": config.harness}
        elif author.harness is None and default_agent_harness(config.id).id == "bash":
            # Nobody chose a harness, and verifiers' own lets the policy run commands on this machine.
            role.setdefault("harness", {"id": HARNESS_ID})
        settings[name] = role
    return settings
