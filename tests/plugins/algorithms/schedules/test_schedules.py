"""Learning rates by hand, warm-up included, as a run works them out."""

import pytest
import torch
from pydantic import ValidationError
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup
from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

from rlhf_config.common import ActorConfig
from rlhf_config.resolved import Selection
from rlhf_core.contracts import SchedulePoint
from rlhf_core.plugins import load
from rlhf_plugin_algorithms.schedules.cosine import cosine
from rlhf_plugin_algorithms.schedules.inverse_sqrt import inverse_sqrt
from rlhf_plugin_algorithms.schedules.linear import linear
from rlhf_plugin_algorithms.schedules.wsd import wsd
from rlhf_trainer.learning.schedules import schedule_of


@pytest.fixture(scope="module")
def installed():
    return load("")


@pytest.fixture
def factors(installed):
    def at(name, updates, *, warmup=0, total=10, floor=0.0, start=0.0, **options):
        registered = installed.get("rlhf_lr_schedules", name)
        selection = Selection(
            slot="actor.lr_schedule",
            section=f"actor.{name}",
            registered=registered,
            options=registered.validate(options),
        )
        # A hundredth of an update more than the warm-up has, which int() cuts off.
        role = ActorConfig(
            optim="any",
            warmup_ratio=min(1.0, (warmup + 0.01) / total),
            min_lr_ratio=floor,
            init_lr_ratio=start,
        )
        spec = schedule_of(selection, role, total)
        return [spec.factor(update) for update in updates]

    return at


def test_warm_up_rises_in_equal_steps_to_the_peak(factors):
    # three updates of warm-up: 1/4, 2/4, 3/4, then the peak
    assert factors("constant", range(5), warmup=3) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_without_warm_up_the_first_update_is_at_the_peak(factors):
    assert factors("cosine", [0]) == [1.0]


def test_linear_falls_to_its_floor(factors):
    # 1 - 0.9 x at x = 0, 1/4, 2/4, 3/4, 1, and past the end
    actual = factors("linear", [2, 4, 6, 8, 10, 99], warmup=2, floor=0.1)

    assert actual == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1, 0.1])


def test_cosine_is_half_way_in_the_middle(factors):
    # 0.2 + 0.8 (1 + cos(pi x)) / 2: x = 1/3 gives 0.2 + 0.8 * 0.75, x = 1/2 gives 0.6
    actual = factors("cosine", [0, 2, 3, 6, 50], total=6, floor=0.2)

    assert actual == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


@pytest.mark.parametrize("cycles", [0.5, 1.0, 1.75])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_a_cosine_with_several_cycles_is_that_of_transformers(factors, cycles, floor):
    """After the warm-up, whose steps are others there: it begins at 0. Once a cosine has ended, ours stays."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, 3, 12, num_cycles=cycles, min_lr_rate=floor
    ).lr_lambdas[0]

    actual = factors("cosine", range(3, 13), warmup=3, total=12, floor=floor, num_cycles=cycles)

    assert actual == pytest.approx([theirs(update) for update in range(3, 13)], abs=1e-9)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("linear", get_linear_schedule_with_warmup),
        ("cosine", get_cosine_schedule_with_warmup),
    ],
)
def test_a_schedule_that_ends_early_is_that_of_a_shorter_run(factors, name, schedule):
    """Of twenty updates, the first twelve; then the floor."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = schedule(optimizer, 3, 12).lr_lambdas[0]

    actual = factors(name, range(3, 20), warmup=3, total=20, end_share=0.6)

    expected = [theirs(update) if update < 12 else 0.0 for update in range(3, 20)]
    assert actual == pytest.approx(expected, abs=1e-9)


def test_a_schedule_that_ends_in_its_warm_up_is_at_the_floor_behind_it(factors):
    # One update after the warm-up it is there: the length is at least 1.
    assert factors("linear", [3, 4, 5], warmup=4, floor=0.1, end_share=0.2) == pytest.approx(
        [0.8, 1.0, 0.1]
    )


def test_a_warm_up_rises_from_where_it_is_told(factors):
    # From 0.2 in four equal steps of 0.2 to the peak: three updates of warm-up, then 1.
    assert factors("constant", range(4), warmup=3, start=0.2) == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert factors("constant", range(4), warmup=3, start=1.0) == [1.0] * 4


def test_wsd_is_stable_until_its_decay(factors):
    # Ten updates, of which the last four fall from 1 to 0.1: 1 - 0.9 d at d = 1/4, 2/4, 3/4, 1.
    updates = [0, 5, 6, 7, 8, 9, 10, 11]
    actual = factors("wsd", updates, floor=0.1, decay_share=0.4, form="linear")

    assert actual == pytest.approx([1.0, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1, 0.1])


def test_wsd_falls_by_the_root_of_its_decay(factors):
    # 1 - sqrt(1/4) = 0.5 after a quarter of the decay
    actual = factors("wsd", [6, 7, 10], decay_share=0.4, form="sqrt")

    assert actual == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_a_decay_over_the_whole_run_is_linear(progress):
    assert wsd(progress, 0.1, 1.0, "linear") == pytest.approx(linear(progress, 0.1))


@pytest.mark.parametrize("formula", [linear, cosine, lambda x, m: wsd(x, m, 0.2, "sqrt")])
def test_a_floor_at_the_peak_is_a_constant_rate(formula):
    assert [formula(progress, 1.0) for progress in (0.0, 0.4, 1.0)] == [1.0, 1.0, 1.0]


def test_inverse_sqrt_is_a_half_after_three_timescales(factors):
    assert inverse_sqrt(30, 10) == 0.5
    # Four updates of warm-up are the timescale: at update 4 + 12 the rate is a half.
    assert factors("inverse_sqrt", [4, 16], warmup=4, total=40) == pytest.approx([1.0, 0.5])
    # Without a warm-up it is 1: sqrt(1 / 4) after three updates.
    assert factors("inverse_sqrt", [0, 3]) == pytest.approx([1.0, 0.5])
    assert factors("inverse_sqrt", [15], total=40, timescale=5) == pytest.approx([0.5])


def test_a_run_that_is_all_warm_up_does_not_divide_by_zero(factors):
    assert factors("linear", [3, 4], warmup=4, total=4) == pytest.approx([0.8, 1.0])


def test_progress_is_that_of_the_updates_after_the_warm_up():
    def at(update):
        point = SchedulePoint(update=update, warmup_updates=2, total_updates=10, min_lr_ratio=0.0)
        return point.progress

    assert [at(update) for update in (2, 6, 10, 12)] == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wsd", {"decay_share": 0.0}),
        ("wsd", {"decay_share": 1.1}),
        ("inverse_sqrt", {"timescale": 0}),
        ("linear", {"power": 2}),
        ("linear", {"end_share": 0.0}),
        ("cosine", {"num_cycles": 0.0}),
    ],
)
def test_options_out_of_range_are_refused(installed, name, options):
    with pytest.raises(ValidationError):
        installed.get("rlhf_lr_schedules", name).validate(options)
