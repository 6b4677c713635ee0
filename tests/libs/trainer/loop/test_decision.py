"""Who decides whether the engine sleeps, and when nobody can."""

import logging
from types import SimpleNamespace

import pytest

from rlhf_core import Component, Config, ConfigError, RLHFError
from rlhf_core.capabilities import PLANS_MEMORY
from rlhf_core.contracts import ENGINE, Colocation, ProcessLayout, SleepAdvice
from rlhf_testing.errors import has_code


class ApartConfig(Config):
    """A runtime whose engines have accelerators of their own."""

    @property
    def for_engines(self):
        return frozenset()

    def layout(self, roles, *, has_gpus, has_engine=True):
        alone = [
            Colocation(names=(name,), num_bundles=1, cpus=1, gpus=1) for name in (*roles, ENGINE)
        ]
        counts = dict.fromkeys((*roles, ENGINE), 1)
        return ProcessLayout(counts=counts, colocations=tuple(alone))

    def placement(self, roles, *, has_engine=True):
        return []


class Planner:
    """A command that gives one advice, or raises it."""

    def __init__(self, advice):
        self.advice = advice

    def __call__(self, arguments):
        return 0

    def sleep_advice(self, config, plugins):
        assert config["runtime"]["sleep"] == "auto"
        if isinstance(self.advice, Exception):
            raise self.advice
        return self.advice


@pytest.fixture
def advised(small_run):
    def run(advice, *changes):
        planner = Component(
            name="advisor", factory=Planner(advice), provides=frozenset({PLANS_MEMORY})
        )
        # The planner that is installed is asked first, and has nothing to say where there is no GPU.
        small_run.with_component("rlhf_commands", planner)
        small_run.steps(*changes)
        return small_run.runtime.specs[0].moving_roles

    return run


def test_auto_asks_the_planner(advised, caplog):
    caplog.set_level(logging.INFO)
    advice = SleepAdvice(sleeps=True, reason="121.0 GiB in place of 160.0")

    assert advised(advice) == ("policy",)
    assert "runtime.sleep auto: 121.0 GiB in place of 160.0" in caplog.text


@pytest.mark.parametrize(
    ("advice", "changes"),
    [
        (SleepAdvice(sleeps=False, reason="it fits"), []),
        (None, []),
        (RLHFError("no such shape"), []),
        (SleepAdvice(sleeps=True, reason="tight"), [{"runtime": {"sleep": "never"}}]),
    ],
)
def test_auto_lets_the_engine_wake_where_sleep_is_not_needed_or_not_known(advised, advice, changes):
    assert advised(advice, *changes) == ()


@pytest.mark.parametrize(
    ("sleep", "leaving"), [("engine", "nothing"), ("state", "state"), ("always", "all")]
)
def test_the_option_says_what_leaves(advised, small_run, sleep, leaving):
    assert advised(None, {"runtime": {"sleep": sleep}}) == ("policy",)

    (spec,) = small_run.runtime.specs
    assert spec.leaving == leaving
    assert spec.roles["policy"].leaving == leaving, (
        "so that the backend can make host memory for it"
    )
    assert spec.engine_spec.sleeps


def test_auto_moves_what_the_planner_says(advised, small_run):
    advised(SleepAdvice(sleeps=True, leaving="nothing", reason="the engine's memory is enough"))

    assert small_run.runtime.specs[0].leaving == "nothing"


def test_an_error_of_the_planner_is_logged_and_not_raised(advised, caplog):
    advised(RLHFError("no such shape"))

    assert "cannot be predicted, so nothing sleeps: no such shape" in caplog.text


def test_always_is_refused_where_the_engine_shares_with_no_role(small_run):
    runtime = SimpleNamespace(start=None, close=None)
    small_run.with_component(
        "rlhf_runtimes", Component(name="apart", config=ApartConfig, factory=lambda config: runtime)
    )

    with pytest.raises(
        ConfigError,
        match="no role shares accelerators with an engine",
        check=has_code("config/sleep-without-sharing"),
    ):
        small_run.steps({"runtime": {"name": "apart", "sleep": "always"}})


def test_always_is_refused_beside_generation_that_runs_ahead(small_run):
    ahead = {"rollout": {"max_staleness": 1}}

    with (
        pytest.raises(
            ConfigError,
            match=r"runtime\.sleep always.*rollout\.max_staleness 1",
            check=has_code("config/sleep-beside-rollouts"),
        ),
        small_run.configured(ahead, {"runtime": {"sleep": "always"}}),
    ):
        pass
    with small_run.configured(ahead) as (resolved, _):
        assert resolved.run.runtime.sleep == "auto"
