"""The environments of a run: found by a task's name, and the same in another process."""

import pytest

from rlhf_core import Component, Config, RolloutError
from rlhf_core.component import Registered
from rlhf_core.config.resolved import Selection
from rlhf_core.contracts import Task, Uid
from rlhf_core.plugins import empty
from rlhf_core.rollouts.environments import environment_spec, environments_of, open_environments


class SizeConfig(Config):
    size: int = 3


class Board:
    def __init__(self, config):
        self.config = config


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


def test_a_task_gets_a_fresh_environment_of_the_kind_that_it_names(selections):
    make = environments_of(selections)

    assert (make(task("small")).config.size, make(task("large")).config.size) == (3, 9)
    assert make(task("small")) is not make(task("small"))


def test_the_only_environment_need_not_be_named(selections):
    assert environments_of(selections[1:])(task("")).config.size == 9
    assert environments_of([]) is None


@pytest.mark.parametrize("name", ["", "huge"])
def test_a_task_of_no_environment_of_the_run_is_refused(selections, name):
    with pytest.raises(RolloutError, match=r"0.7.0.0: .*\(small, large\).*--env"):
        environments_of(selections)(task(name))


def test_another_process_makes_the_same_environments_of_names_and_values(selections):
    plugins = empty()
    plugins.registries["rlhf_environments"].add(selections[0].registered)

    make = open_environments([environment_spec(each) for each in selections], plugins)

    assert make(task("large")).config == SizeConfig(size=9)
    assert make.of(task("large")).name == "large"
