"""A schedule is worked out before anything is built, and a wrong share names the schedule and the update."""

import math

import pytest

from rlhf_config.common import ActorConfig
from rlhf_config.resolved import Selection
from rlhf_core import Component, ConfigError, PluginError
from rlhf_core.component import Config, Registered
from rlhf_testing.errors import has_code
from rlhf_trainer.learning.schedules import schedule_of

ROLE = ActorConfig(optim="any", warmup_ratio=0.2, min_lr_ratio=0.25)


def chosen(schedule):
    component = Component(name="mine", factory=lambda config: schedule)
    return Selection(
        slot="critic.lr_schedule",
        section="critic.mine",
        registered=Registered(component, "my_plugin"),
        options=Config(),
    )


def test_without_a_schedule_the_rate_rises_and_stays():
    spec = schedule_of(None, ROLE, 10)

    assert spec.factors == pytest.approx((1 / 3, 2 / 3, 1.0))
    assert spec.name == ""


def test_a_schedule_is_asked_for_every_update_after_the_warm_up_and_the_end():
    asked = []

    def half(point):
        asked.append(point)
        return 0.5

    spec = schedule_of(chosen(half), ROLE, 10)

    assert spec.name == "mine"
    assert spec.factors == pytest.approx((1 / 3, 2 / 3, *[0.5] * 9))
    assert [point.update for point in asked] == list(range(2, 11))
    assert {(p.warmup_updates, p.total_updates, p.min_lr_ratio) for p in asked} == {(2, 10, 0.25)}


@pytest.mark.parametrize("share", [math.nan, math.inf, -0.1, None, "1", True])
def test_a_wrong_share_names_the_schedule_and_the_update(share):
    schedule = chosen(lambda point: share if point.update == 7 else 1.0)

    with pytest.raises(ConfigError) as caught:
        schedule_of(schedule, ROLE, 10)

    assert str(caught.value).startswith(
        "--critic.lr_schedule mine (my_plugin): expected a share of the peak learning rate at update 7 of 10"
    )
    assert f"got {share!r}" in str(caught.value)


def test_a_schedule_that_raises_is_named_with_the_update():
    with pytest.raises(
        PluginError,
        match=r"mine \(my_plugin\): at update 2 of 10 it raised ZeroDiv",
        check=has_code("plugin/raised"),
    ):
        schedule_of(chosen(lambda point: 1 / 0), ROLE, 10)
