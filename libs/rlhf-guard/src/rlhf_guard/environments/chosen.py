"""The environments of a run by name: made from the configuration, or from what another process sent.

Those that run elsewhere (``env.NAME.isolation``) have a host, whose workers end with ``Environments.close``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf_config.resolved import EnvironmentOptions, Selection
from rlhf_core.batch.task import Task
from rlhf_core.component import ComponentRef, Config, Registered
from rlhf_core.contracts.environment import Environment, MakesTasks, manifest_of
from rlhf_core.contracts.external import ExternalConfig
from rlhf_core.contracts.runtime import EnvironmentSpec
from rlhf_core.errors import PluginError, RolloutError
from rlhf_core.plugins import Plugins

from .host import EnvironmentHost
from .tasks import IsolatedTasks

SLOT, HOOK = "env.use", "rlhf_environments"
_METHODS = ("reset", "step", "close")
CLOSE_S = 30.0
"""Seconds for an instance that made tasks to be closed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEnvironment:
    """An environment that a run uses. Calling it makes one for an episode."""

    name: str
    """Name in the run, by which ``Task.environment`` names it."""
    registered: Registered[Environment]
    make: Callable[[Config], Environment]
    """The loaded factory; where the environment runs elsewhere, what makes its end in this process."""
    options: Config
    shared: EnvironmentOptions
    host: EnvironmentHost | None = None
    """The workers or servers that play its episodes; None: this process does."""

    def __call__(self) -> Environment:
        """Return a fresh environment.

        Raises:
            PluginError: it lacks a method of ``Environment``.
        """
        made = self.make(self.options)
        if missing := [name for name in _METHODS if not callable(getattr(made, name, None))]:
            raise PluginError(
                f"{self.label}: expected an environment with the coroutine functions {', '.join(_METHODS)}; "
                f"{type(made).__name__} has no {' and no '.join(missing)}. Where nothing has to be closed, write "
                "async def close(self): pass",
                code="environment/contract",
            )
        return made

    @property
    def label(self) -> str:
        """Name and version, for messages and records: ``guess_number@1``."""
        return version_label(self.registered, self.make)


class Environments:
    """The environments of a run. Calling it with a task makes a fresh environment for an episode of the task."""

    def __init__(self, chosen: Iterable[ChosenEnvironment]) -> None:
        self._chosen = {each.name: each for each in chosen}

    def __iter__(self) -> Iterator[ChosenEnvironment]:
        return iter(self._chosen.values())

    async def start(self) -> None:
        """Start a worker of each environment that runs elsewhere, so that one that lacks its package is found early.

        Raises:
            RLHFError: a worker cannot be started, or a server cannot be reached.
        """
        await asyncio.gather(*(each.host.start() for each in self if each.host is not None))

    async def close(self) -> None:
        """End the workers; none of their processes is left."""
        await asyncio.gather(*(each.host.close() for each in self if each.host is not None))

    def __call__(self, task: Task) -> Environment:
        """Return a fresh environment of the kind that the task names; a run's only one need not be named.

        Raises:
            RolloutError: the run has no such environment.
        """
        return self.of(task)()

    def of(self, task: Task) -> ChosenEnvironment:
        """Return the environment that plays a task.

        Raises:
            RolloutError: the run has no such environment.
        """
        name = task.environment or (next(iter(self._chosen)) if len(self._chosen) == 1 else "")
        if name not in self._chosen:
            raise RolloutError(
                f"{task.uid}: expected a task of one of the run's environments ({', '.join(self._chosen)}), got one of "
                f"{name!r}. Choose it with --env, or name another one in the row's column 'environment'.",
                code="environment/unknown",
            )
        return self._chosen[name]

    def named(self, name: str) -> ChosenEnvironment:
        """Return the environment of a name in the run."""
        return self._chosen[name]

    def __len__(self) -> int:
        return len(self._chosen)


class TaskMakers:
    """The environments of a run as makers of tasks: an instance of each, which plays no episode. Call ``close`` last.

    Args:
        environments: None: the run has none.
    """

    def __init__(self, environments: Environments | None) -> None:
        self._environments = environments
        self._instances: dict[str, Environment | IsolatedTasks] = {}

    def reader(
        self, environment: str, split: str
    ) -> Callable[[], Iterable[Mapping[str, Any]]] | None:
        """Return a function that gives the rows of a split from the start; None: the environment makes no tasks.

        Raises:
            RLHFError: the environment cannot be made.
        """
        if self._environments is None:
            return None
        if environment not in self._instances:
            chosen = self._environments.named(environment)
            if isinstance(chosen.make, type) and not hasattr(chosen.make, "tasks"):
                return None
            elsewhere = chosen.host
            self._instances[environment] = (
                chosen() if elsewhere is None else IsolatedTasks(elsewhere.twin())
            )
        maker = self._instances[environment]
        if isinstance(maker, IsolatedTasks) and not maker.makes_tasks():
            return None
        return partial(maker.tasks, split) if isinstance(maker, MakesTasks) else None

    async def close(self) -> None:
        """Close the instances. What cannot be closed is logged: no episode depends on it."""
        while self._instances:
            name, instance = self._instances.popitem()
            limit = asyncio.timeout(CLOSE_S)
            try:
                async with limit:
                    await instance.close()
            except (Exception, SystemExit) as error:
                late = f"it did not return within {CLOSE_S:g} s"
                why = late if limit.expired() else f"{type(error).__name__}: {error}"
                log.warning("environment %s, which made tasks, could not be closed: %s", name, why)


def label_of(environments: Environments | None, task: Task) -> str:
    """Return plugin, name and version of a task's environment, for messages; empty without environments."""
    return "" if environments is None else environments.of(task).registered.label


def version_label(registered: Registered[Environment], factory: object) -> str:
    """Return an environment's component name and version: that of its manifest, or else of its distribution.

    Raises:
        TypeError: its attribute ``manifest`` is none.
    """
    manifest = manifest_of(factory)
    version = manifest.version if manifest is not None else ""
    if not version and registered.distribution is not None:
        version = registered.distribution.version
    return f"{registered.name}@{version}" if version else registered.name


def versions_of(selections: Sequence[Selection]) -> dict[str, str]:
    """Return name and version of each environment of a run, by its name in the run, for records.

    Raises:
        RLHFError: the code of one cannot be imported.
    """
    return {selection.name: _version(selection) for selection in selections}


def _version(selection: Selection) -> str:
    shared = selection.environment or EnvironmentOptions()
    if shared.isolation in {"none", "process"}:
        return version_label(selection.registered, selection.registered.load())
    # What runs elsewhere need not be installed here, nor in this version.
    return _where_it_runs(selection).name


def environments_of(selections: Sequence[Selection]) -> Environments | None:
    """Return the environments of a configuration, their code imported; None when there are none.

    Raises:
        RLHFError: the code of one cannot be imported.
    """
    if not selections:
        return None
    return Environments(_chosen(selection) for selection in selections)


def _chosen(selection: Selection) -> ChosenEnvironment:
    registered, options = selection.registered, selection.options
    shared = selection.environment or EnvironmentOptions()
    host = None
    if shared.isolation != "none":
        host = EnvironmentHost(selection.name, _where_it_runs(selection), registered.origin, shared)
    return ChosenEnvironment(
        name=selection.name,
        registered=registered,
        # An environment that runs elsewhere may need what is installed only there.
        make=registered.load() if host is None else lambda _: host.make(),
        options=options,
        shared=shared,
        host=host,
    )


def _where_it_runs(selection: Selection) -> ComponentRef:
    """Return the environment by the name and options that it has in its worker."""
    if isinstance(selection.options, ExternalConfig):
        return selection.options.component()
    return selection.ref(HOOK)


def environment_spec(selection: Selection) -> EnvironmentSpec:
    """Return the names and plain values from which ``open_environments`` makes the same environment elsewhere."""
    shared = selection.environment or EnvironmentOptions()
    return EnvironmentSpec(
        component=selection.ref(HOOK),
        section=selection.section,
        shared=shared.model_dump(mode="json"),
    )


def open_environments(specs: Sequence[EnvironmentSpec], plugins: Plugins) -> Environments | None:
    """Return the environments that ``environment_spec`` described, made of this process's plugins.

    Raises:
        RLHFError: this process lacks one, or its code cannot be imported.
    """
    selections = []
    for spec in specs:
        registered = plugins.get(spec.component.kind, spec.component.name)
        selections.append(
            Selection(
                slot=SLOT,
                section=spec.section,
                registered=registered,
                options=registered.validate(spec.component.options),
                environment=EnvironmentOptions.model_validate(dict(spec.shared)),
            )
        )
    return environments_of(selections)
