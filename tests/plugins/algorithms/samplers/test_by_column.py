"""The sampler `by_column`: the order of its epochs, and rows that have no place in it."""

import pytest

from rlhf_core.contracts import DrawRequest
from rlhf_core.errors import ConfigError, DataError
from rlhf_plugin_algorithms.samplers.by_column import ByColumn, ByColumnConfig
from rlhf_testing.conformance.prompt_draws import NumberedPrompts
from rlhf_testing.errors import has_code


class Levels(NumberedPrompts):
    """Prompts 2, 3, 5, 6, 8, 9 with these levels."""

    def __init__(self, *levels):
        super().__init__(len(levels))
        self.levels = dict(zip(self.indices.tolist(), levels, strict=True))

    def row(self, index):
        return {"prompt": "p", "level": self.levels[index]}


def drawn(prompts, count, **options):
    sampler = ByColumn(ByColumnConfig(key="level", **options))
    sampler.begin(prompts)
    return sampler.draw(DrawRequest(count=count, taken=0, step=1))


def test_each_epoch_goes_from_small_to_large():
    assert drawn(Levels(3, 1, 2.5, -4), 8) == [6, 3, 5, 2] * 2
    assert drawn(Levels(3, 1, 2.5, -4), 4, descending=True) == [2, 5, 3, 6]


def test_numbers_may_be_text_as_in_cells_of_csv():
    assert drawn(Levels("3", "10", " 2.5", "-4"), 4) == drawn(Levels(3, 10, 2.5, -4), 4)


def test_equal_numbers_come_in_the_order_of_the_epoch():
    prompts = Levels(1, 0, 1, 0, 1, 0)

    found = drawn(prompts, 12)

    for epoch in (0, 1):
        order = prompts.order(epoch).tolist()
        expected = [i for level in (0, 1) for i in order if prompts.levels[i] == level]
        assert found[6 * epoch :][:6] == expected
    assert found[:6] != found[6:]


@pytest.mark.parametrize("value", ["easy", None, True, float("nan"), float("inf")])
def test_a_row_without_a_number_is_named(value):
    with pytest.raises(DataError, match="prompt 5", check=has_code("data/not-a-number")):
        drawn(Levels(1, 2, value, 4), 1)


def test_the_number_may_stand_in_an_object_of_the_row():
    sampler = ByColumn(ByColumnConfig(key="level.hard"))
    sampler.begin(Levels({"hard": 3}, {"hard": 1}, {"hard": 2}))

    assert sampler.draw(DrawRequest(count=3, taken=0, step=1)) == [3, 5, 2]

    sampler = ByColumn(ByColumnConfig(key="level.easy"))
    with pytest.raises(
        DataError, match="it has prompt, level", check=has_code("data/not-a-number")
    ):
        sampler.begin(Levels({"hard": 3}))


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    sampler = ByColumn(ByColumnConfig(key="difficulty"))

    with pytest.raises(
        DataError,
        match=r"--data\.by_column\.key difficulty.*it has prompt, level",
        check=has_code("data/not-a-number"),
    ):
        sampler.begin(Levels(1, 2))


def test_tasks_without_end_are_refused_with_the_way_out():
    prompts = Levels(1, 2)
    prompts.returning = False

    with pytest.raises(ConfigError, match=r"--data\.train", check=has_code("data/endless-tasks")):
        ByColumn(ByColumnConfig(key="level")).begin(prompts)
