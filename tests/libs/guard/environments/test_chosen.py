"""The environments of a run: found by a task's name, and the same in another process."""

import asyncio
from dataclasses import replace

import pytest

from rlhf_config.resolved import Selection
from rlhf_core import Component, Config, PluginError, RolloutError
from rlhf_core.component import Registered
from rlhf_core.contracts import EnvironmentManifest, Task, Uid
from rlhf_core.plugins import empty
from rlhf_guard.environments.chosen import (
    TaskMakers,
    environment_spec,
    environments_of,
    open_environments,
    version_label,
    versions_of,
)
from rlhf_testing.errors import has_code


class SizeConfig(Config):
    size: int = 3


class Board:
    def __init__(self, config):
        self.config = config

    async def reset(self, task, seed): ...

    async def step(self, action): ...

    async def close(self): ...


@pytest.fixture
def selections():
    entry = Registered(Component(name="board", factory=Board, config=SizeConfig), "games")
    return [
        Selection(
            slot="env.use",
            section=f"env.{name}",
            registered=entry,
            options=SizeConfig(size=size),
        )
        for name, size in (("small", 3), ("large", 9))
    ]


def task(environment):
    return Task(uid=Uid(0, 7), environment=environment)


def test_an_environment_without_one_of_its_methods_is_named_before_its_first_episode(selections):
    class Endless:
        def __init__(self, config):
            pass

        async def reset(self, task, seed): ...

        async def step(self, action): ...

    entry = Registered(Component(name="endless", factory=Endless, config=SizeConfig), "games")
    chosen = [replace(selections[0], registered=entry)]
    made = environments_of(chosen)

    with pytest.raises(
        PluginError, match=r"Endless has no close\.", check=has_code("environment/contract")
    ):
        made(task("small"))


def test_a_task_gets_a_fresh_environment_of_the_kind_that_it_names(selections):
    make = environments_of(selections)

    assert (make(task("small")).config.size, make(task("large")).config.size) == (3, 9)
    assert make(task("small")) is not make(task("small"))


def test_the_only_environment_need_not_be_named(selections):
    assert environments_of(selections[1:])(task("")).config.size == 9
    assert environments_of([]) is None


@pytest.mark.parametrize("name", ["", "huge"])
def test_a_task_of_no_environment_of_the_run_is_refused(selections, name):
    with pytest.raises(
        RolloutError,
        match=r"0\.7\.0\.0.*\(small, large\).*--env",
        check=has_code("environment/unknown"),
    ):
        environments_of(selections)(task(name))


def test_another_process_makes_the_same_environments_of_names_and_values(selections):
    plugins = empty()
    plugins.registries["rlhf_environments"].add(selections[0].registered)

    make = open_environments([environment_spec(each) for each in selections], plugins)

    assert make(task("large")).config == SizeConfig(size=9)
    assert make.of(task("large")).name == "large"


def test_a_label_has_the_version_of_the_manifest_or_of_the_distribution(selections):
    class Versioned(Board):
        manifest = EnvironmentManifest(version="3")

    with_manifest = Registered(Component(name="board", factory=Versioned), "games")

    assert version_label(selections[0].registered, Board) == "board"
    assert version_label(with_manifest, Versioned) == "board@3"
    assert versions_of(selections) == {"small": "board", "large": "board"}


class Maker(Board):
    """Makes tasks, and counts its instances."""

    made = closed = 0

    def __init__(self, config):
        super().__init__(config)
        type(self).made += 1

    def tasks(self, split):
        return {"train": [{"key": self.config.size}]}[split]

    async def close(self):
        type(self).closed += 1


def test_makers_of_tasks_are_one_instance_of_each_environment_and_are_closed(selections):
    entry = Registered(Component(name="maker", factory=Maker, config=SizeConfig), "games")
    chosen = [*selections, replace(selections[0], section="env.mine", registered=entry)]
    makers = TaskMakers(environments_of(chosen))

    assert makers.reader("small", "train") is None, "a board makes no tasks"
    read = makers.reader("mine", "train")
    assert read() == read() == [{"key": 3}]
    with pytest.raises(KeyError):
        makers.reader("mine", "eval")()
    assert TaskMakers(None).reader("mine", "train") is None
    asyncio.run(makers.close())
    assert (Maker.made, Maker.closed) == (1, 1)


async def _raise(self):
    raise RuntimeError("the window is gone")


async def _wait(self):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("close", "said"),
    [(_raise, "RuntimeError: the window is gone"), (_wait, "it did not return within 0.01 s")],
)
def test_a_maker_that_cannot_be_closed_is_told_and_ends_no_run(
    selections, monkeypatch, caplog, close, said
):
    """No episode depends on it, and an error of the run that is on its way is not replaced."""
    monkeypatch.setattr("rlhf_guard.environments.chosen.CLOSE_S", 0.01)
    maker = type("Stuck", (Maker,), {"close": close})
    entry = Registered(Component(name="maker", factory=maker, config=SizeConfig), "games")
    makers = TaskMakers(
        environments_of([replace(selections[0], section="env.mine", registered=entry)])
    )
    makers.reader("mine", "train")

    asyncio.run(makers.close())

    (message,) = caplog.messages
    assert "environment mine, which made tasks, could not be closed: " in message
    assert said in message
