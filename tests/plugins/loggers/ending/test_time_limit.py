"""The end of a run by a clock that the test sets."""

import json

import pytest

from rlhf_core.contracts import RunInfo
from rlhf_plugin_loggers.ending.time_limit import COMPONENT, TimeLimit, TimeLimitConfig
from rlhf_testing.conformance import checks_of, subject


class Clock:
    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.mark.parametrize("check", checks_of("rlhf_observers"), ids=lambda check: check.name)
def test_contract(check):
    check(subject(COMPONENT))


def started(tmp_path, hours, before_s=None):
    clock = Clock()
    limit = TimeLimit(TimeLimitConfig(hours=hours), clock)
    if before_s is not None:
        limit.load_state_dict({"seconds": before_s})
    limit.run_start(RunInfo(output=tmp_path, config={}, total_steps=9, start_step=0))
    return limit, clock


def test_a_run_ends_with_the_first_event_after_its_hours(tmp_path):
    limit, clock = started(tmp_path, hours=0.5)

    clock.now += 1799.0
    assert limit.step_end(1, {}) is None
    clock.now += 1.0
    assert limit.eval_end(1, {}).reason == "0.5 hours have passed, of 0.5"
    assert limit.step_end(2, {}) is not None


def test_hours_before_a_resume_count(tmp_path):
    first, clock = started(tmp_path, hours=1.0)
    clock.now += 3000.0
    state = json.loads(json.dumps(first.state_dict()))

    second, clock = started(tmp_path, hours=1.0, before_s=state["seconds"])

    clock.now += 599.0
    assert second.step_end(1, {}) is None
    clock.now += 1.0
    assert second.step_end(2, {}) is not None


def test_the_time_before_the_first_step_does_not_count(tmp_path):
    clock = Clock()
    limit = TimeLimit(TimeLimitConfig(hours=1.0), clock)
    clock.now += 1e6

    assert limit.state_dict() == {"seconds": 0.0}
