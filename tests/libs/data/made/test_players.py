"""Which environment plays a task that comes from no environment."""

from collections import Counter

import pytest

from rlhf_core import DataError
from rlhf_data.made.players import Players
from rlhf_testing.errors import has_code

SEVERAL = Players({"maze": 0.7, "cards": 0.3})


def test_a_run_without_environments_names_none_and_an_only_one_plays_everything():
    assert Players().of(3, {"environment": "maze"}) == ""
    assert Players({"maze": 1.0}).of(3, {"environment": "a column of the data"}) == "maze"


def test_each_environment_plays_its_share_of_any_run_of_tasks():
    for start in (0, 5, 1_000_003):
        counts = Counter(SEVERAL.of(index) for index in range(start, start + 200))
        # 140 and 60, within 2: golden-ratio multiples stay within a small constant of any share.
        assert abs(counts["maze"] - 140) <= 2, counts


def test_a_row_may_name_its_environment():
    assert {SEVERAL.of(index, {"environment": "cards"}) for index in range(50)} == {"cards"}
    assert SEVERAL.of(7, {"environment": None}) == SEVERAL.of(7)


def test_a_row_that_names_another_environment_is_refused():
    with pytest.raises(
        DataError,
        match=r"row 4.*'chess'.*maze, cards.*--env",
        check=has_code("environment/unknown"),
    ):
        SEVERAL.of(4, {"environment": "chess"})
