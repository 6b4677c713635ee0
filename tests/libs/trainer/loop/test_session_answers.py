"""Components of a run that answer what their kind does not promise: the run ends with the component's name."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
import torch

from rlhf_core import Component, PluginError
from rlhf_core.contracts import Advantages, Metric
from rlhf_testing.errors import has_code
from rlhf_trainer.learning.demands import demands_of
from rlhf_trainer.learning.parts import learning_parts
from rlhf_trainer.loop.session import open_session
from rlhf_trainer.rollouts.worker import open_rollouts

MASK = torch.tensor([[True, True], [True, False]])
WRONG = has_code("plugin/wrong-answer")


async def no_trajectories(task, samples, context):
    return None


@pytest.mark.parametrize(
    ("hook", "part", "changes", "option"),
    [
        (
            "rlhf_rollout_executors",
            SimpleNamespace(run=no_trajectories),
            {"rollout": {"executor": "wrong"}},
            "rollout.executor",
        ),
        (
            "rlhf_sample_filters",
            SimpleNamespace(keep=lambda group, info: True),
            {"rollout": {"filters": ["wrong"]}},
            "rollout.filters",
        ),
        (
            "rlhf_reward_shapers",
            SimpleNamespace(shape=lambda batch, info: batch),
            {"reward": {"shapers": ["wrong"]}},
            "reward.shapers",
        ),
    ],
)
def test_a_part_of_the_loop_that_answers_wrongly_is_named(small_run, hook, part, changes, option):
    small_run.with_component(hook, Component(name="wrong", factory=lambda config: part))

    with pytest.raises(PluginError, match=rf"--{option} wrong \(small\).* returned", check=WRONG):
        small_run.steps(changes)


def test_an_executor_in_another_process_is_named_with_its_origin(small_run):
    executor = SimpleNamespace(run=no_trajectories)
    component = Component(name="wrong", factory=lambda config: executor)
    small_run.with_component("rlhf_rollout_executors", component)
    with small_run.configured({"rollout": {"executor": "wrong"}}) as (resolved, plugins):
        spec = asyncio.run(spec_of(small_run, resolved, plugins))
        there = open_rollouts(spec.rollouts, plugins)

    with pytest.raises(PluginError, match=r"^small:wrong \(small\): run\(\) returned", check=WRONG):
        asyncio.run(there.executor.run(None, [0], None))


async def spec_of(small_run, resolved, plugins):
    async with AsyncExitStack() as stack:
        await open_session(resolved, plugins, stack)
    return small_run.runtime.specs[-1]


def parts_of(small_run, algo):
    with small_run.configured({"algo": algo}) as (resolved, _):
        return learning_parts(resolved, demands_of(resolved), None)


@pytest.mark.parametrize("coef", [0.0, 0.1])
def test_an_estimator_of_one_number_is_named(small_run, coef):
    component = Component(
        name="wrong", factory=lambda config: lambda batch: Advantages(advantages=torch.zeros(()))
    )
    small_run.with_component("rlhf_advantage_estimators", component)
    algo = {"advantage": {"estimator": "wrong"}, "kl": {"mode": "reward", "coef": coef}}
    estimator = parts_of(small_run, algo).estimator

    says = r"^--algo.advantage.estimator wrong \(small\) returned advantages of shape \(\)"
    with pytest.raises(PluginError, match=says, check=WRONG):
        estimator(SimpleNamespace(action_mask=MASK, kl_penalty=None))


def test_a_kl_estimator_of_one_number_is_named_where_the_penalty_is_in_the_reward(small_run):
    component = Component(name="wrong", factory=lambda config: torch.mean)
    small_run.with_component("rlhf_kl_estimators", component)
    algo = {"kl": {"estimator": "wrong", "mode": "reward", "coef": 0.1}}
    estimator = parts_of(small_run, algo).kl_estimator

    says = r"^--algo.kl.estimator wrong \(small\) returned shape \(\); expected \(3,\)"
    with pytest.raises(PluginError, match=says, check=WRONG):
        estimator(torch.zeros(3))


def test_a_metric_of_a_component_is_refused_that_is_called_like_one_of_the_run(small_run):
    """The mean of both was recorded as the run's."""

    def prepare(runtime):
        runtime.learner.metrics["reward/mean"] = Metric(9.0)

    with pytest.raises(PluginError, match=r"^reward/mean: ", check=has_code("metric/name-taken")):
        small_run.steps(prepare=prepare)
