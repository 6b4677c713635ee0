"""``drop_stale``: tokens that too old weights sampled."""

import pytest

from rlhf_plugin_algorithms.filters.drop_stale import DropStale, DropStaleConfig


@pytest.fixture
def fresh(info):
    def keep(group, **options):
        return DropStale(DropStaleConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def group(Row, columns):
    """A group with these rewards."""

    def build(*rewards):
        return columns(*(Row(reward=reward) for reward in rewards))

    return build


@pytest.mark.parametrize(
    ("versions", "limit", "expected"),
    [
        ((5, 5, 5), 0, None),
        ((4, 5, 5), 0, "stale"),
        ((4, 4, 5), 1, None),
        ((5, 3, 5), 1, "stale"),  # one old token in the middle is enough
        ((1, 1, 1), 4, None),
        ((0, 1, 1), 4, "stale"),
    ],
)
def test_the_oldest_token_decides(Row, columns, fresh, versions, limit, expected):
    some = columns(Row(), Row(versions=versions))  # the weights to be trained are version 5

    assert fresh(some, limit=limit) == expected
