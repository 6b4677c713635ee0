"""Mistakes of a prompt sampler are errors that name it and say what was expected."""

import numpy as np
import pytest

from rlhf_core.contracts import DrawRequest
from rlhf_core.errors import DataError, PluginError
from rlhf_testing.conformance.prompt_draws import NumberedPrompts
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.prompts import LONGEST_RUN, CheckedSampler

WHO = "--data.sampler mine (rlhf-plugin-mine 1.2.0)"


class Scripted:
    def __init__(self, drawn):
        self.drawn = drawn

    def begin(self, prompts):
        self.prompts = prompts

    def draw(self, request):
        if isinstance(self.drawn, Exception):
            raise self.drawn
        return self.drawn


def draw(drawn, *, count=2, prompts=None):
    sampler = CheckedSampler(Scripted(drawn), WHO)
    sampler.begin(prompts or NumberedPrompts(4))  # 2, 3, 5, 6
    return sampler.draw(DrawRequest(count=count, taken=0, step=7))


def test_indices_come_back_as_plain_numbers():
    drawn = draw(np.array([2, 6]))

    assert drawn == [2, 6]
    assert all(type(index) is int for index in drawn)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ([], "expected 2 prompts for step 7, got none"),
        ([2], "expected 2 prompts for step 7, got 1"),
        ([2, 3, 5], "expected 2 prompts for step 7, got 3"),
        ([2, 4], "no prompt has the index 4. There are 4, from 2 to 6"),
        ([2, 99], "no prompt has the index 99"),
        ([2, -1], "no prompt has the index -1"),
        ([2, "3"], "whole numbers; got '3'"),
        ([2, 3.0], "whole numbers; got 3.0"),
        ([2, True], "whole numbers; got True"),
        (None, "expected 2 prompts for step 7, got None. draw() has to return a list of indices"),
        (KeyError("level"), "draw() raised KeyError: 'level'"),
    ],
)
def test_a_mistake_names_the_sampler_its_plugin_and_the_version(drawn, said):
    with pytest.raises(PluginError) as caught:
        draw(drawn)

    assert str(caught.value).startswith(f"{WHO}: ")
    assert said in str(caught.value)


def test_an_error_of_ours_stays_what_it_is():
    with pytest.raises(DataError, match=r"^rows.jsonl:3: broken$", check=has_code("data/invalid")):
        draw(DataError("rows.jsonl:3: broken"))


def test_one_prompt_for_ever_is_a_mistake():
    sampler = CheckedSampler(Scripted([3]), WHO)
    sampler.begin(NumberedPrompts(4))
    for number in range(LONGEST_RUN):
        sampler.draw(DrawRequest(count=1, taken=number, step=number + 1))

    with pytest.raises(
        PluginError,
        match="drew prompt 3 33 times in a row, up to step 33",
        check=has_code("plugin/repeated-prompt"),
    ):
        sampler.draw(DrawRequest(count=1, taken=32, step=33))


def test_the_only_prompt_may_be_drawn_for_ever():
    assert draw([2] * 100, count=100, prompts=NumberedPrompts(1)) == [2] * 100
