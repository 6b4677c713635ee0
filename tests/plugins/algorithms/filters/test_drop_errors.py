"""``drop_errors``: samples that report an error."""

from dataclasses import replace

import pytest

from rlhf_plugin_algorithms.filters.drop_errors import DropErrors, DropErrorsConfig


@pytest.fixture
def sound(info):
    def keep(group, **options):
        return DropErrors(DropErrorsConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def group(Row, columns):
    """A group with these rewards."""

    def build(*rewards):
        return columns(*(Row(reward=reward) for reward in rewards))

    return build


@pytest.mark.parametrize(
    ("errors", "max_share", "expected"),
    [
        ((0.0, 0.0, 0.0, 0.0), 0.0, None),
        ((1.0, 0.0, 0.0, 0.0), 0.0, "errors"),
        ((1.0, 0.0, 0.0, 0.0), 0.25, None),
        ((1.0, 3.0, 0.0, 0.0), 0.25, "errors"),
        ((-1.0, 0.0, 0.0, 0.0), 0.0, None),
    ],
)
def test_more_errors_than_allowed_drop_a_group(Row, columns, sound, errors, max_share, expected):
    some = columns(*(Row(metrics={"error": error}) for error in errors))

    assert sound(some, max_share=max_share) == expected


def test_samples_that_report_nothing_have_no_error(Row, columns, sound):
    assert sound(columns(Row(), Row())) is None
    assert sound(columns(Row(metrics={"error": 1.0}), Row()), max_share=0.5) is None
    assert sound(columns(Row(metrics={"crash": 1.0}), Row()), metric="crash") == "errors"


def test_an_episode_with_errors_in_two_sequences_counts_once(Row, columns, sound):
    some = columns(
        Row(sample=0, segment=0, metrics={"error": 1.0}),
        Row(sample=0, segment=1, metrics={"error": 1.0}),
        Row(sample=1),
    )

    assert sound(some, max_share=0.5) is None


def test_a_metric_that_no_sample_of_a_step_reported_is_said_once(Row, columns, info, caplog):
    filter_ = DropErrors(DropErrorsConfig(metric="crashs"))
    some = columns(Row(metrics={"crash": 1.0, "turns": 2.0}))

    for step in (1, 1, 2, 2, 3):
        assert filter_.keep(some, replace(info, step=step)) is None

    (said,) = caplog.messages
    assert said.startswith("drop_errors: no sample has reported the metric crashs ")
    assert said.endswith("Near to it: crash")


def test_a_metric_that_one_sample_reports_is_not_said_to_be_missing(Row, columns, info, caplog):
    filter_ = DropErrors(DropErrorsConfig())

    filter_.keep(columns(Row(metrics={"turns": 2.0})), replace(info, step=1))
    filter_.keep(columns(Row(metrics={"error": 0.0})), replace(info, step=1))
    filter_.keep(columns(Row()), replace(info, step=2))

    assert not caplog.messages
