"""``drop_errors``: samples that report an error."""

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
