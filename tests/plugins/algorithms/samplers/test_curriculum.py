"""The sampler `curriculum`: which prompts it prefers, and how it keeps their pass rates."""

from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_core.contracts import DrawRequest, PromptResult
from rlhf_core.errors import ConfigError
from rlhf_plugin_algorithms.samplers.curriculum import Curriculum, CurriculumConfig
from rlhf_testing.conformance.prompt_draws import NumberedPrompts
from rlhf_testing.errors import has_code

PROMPTS = 40


def curriculum(**options):
    sampler = Curriculum(CurriculumConfig(**options))
    sampler.begin(NumberedPrompts(PROMPTS))
    return sampler


def draw(sampler, count=8, taken=0, in_flight=()):
    request = DrawRequest(count=count, taken=taken, step=1, in_flight=frozenset(in_flight))
    return sampler.draw(request)


def result(index, *rewards, epoch=0):
    return PromptResult(index=index, epoch=epoch, step=1, rewards=rewards)


def test_a_rate_is_the_share_that_passed_and_then_moves_halfway():
    sampler = curriculum(memory=0.5)

    sampler.note([result(2, 1.0, 0.0, 0.0, 0.9)])
    assert sampler.state_dict() == {"rates": {"2": 0.25}}
    sampler.note([result(2, 1.0, 1.0, 1.0, 1.5)])
    assert sampler.state_dict() == {"rates": {"2": 0.625}}  # halfway from 0.25 to 1


def test_two_results_of_a_prompt_count_in_the_order_of_their_draws():
    sampler = curriculum(memory=0.5)

    sampler.note([result(2, 1.0, epoch=1), result(2, 0.0, epoch=0)])

    assert sampler.state_dict() == {"rates": {"2": 0.5}}  # 0, then halfway to 1


class Mixed(NumberedPrompts):
    """A mix whose epochs have 30 of 40 prompts: the first 10, and 20 of the others, which differ by epoch."""

    def __len__(self):
        return 30

    def order(self, epoch):
        first, others = self.indices[:10], np.roll(self.indices[10:], -20 * epoch)
        return self.generator(epoch).permutation(np.concatenate([first, others[:20]]))


def test_an_epoch_of_a_mix_has_the_shares_of_its_sets():
    sampler = Curriculum(CurriculumConfig())
    prompts = Mixed(PROMPTS)
    sampler.begin(prompts)

    for epoch in range(3):
        drawn = set(draw(sampler, 30, taken=30 * epoch))

        assert drawn == set(prompts.order(epoch).tolist())


def test_prompts_outside_of_the_bounds_come_by_the_uniform_share_alone():
    sampler = curriculum(low=0.1, high=0.9, uniform=0.25)
    indices = NumberedPrompts(PROMPTS).indices.tolist()
    wanted = set(indices[:20])
    sampler.note([result(i, *([1.0, 0.0] if i in wanted else [1.0, 1.0])) for i in indices])

    drawn = [index for step in range(500) for index in draw(sampler, taken=8 * step)]

    # 3/4 of the draws, and the uniform ones that fall on one of the 20 of 40: 3/4 + 1/4 * 1/2 = 0.875. Eight draws
    # without repetition change that by less than a hundredth; the deviation of 4000 draws is 0.005.
    share = sum(index in wanted for index in drawn) / len(drawn)
    assert share == pytest.approx(0.875, abs=0.03)
    counts = Counter(drawn)
    assert len(counts) == PROMPTS
    inside = [counts[index] for index in wanted]
    assert max(inside) < 1.5 * min(inside)


def test_bounds_count_as_inside():
    sampler = curriculum(low=0.5, high=0.5, uniform=1e-9)
    indices = NumberedPrompts(PROMPTS).indices.tolist()
    sampler.note([result(index, 1.0, 0.0) for index in indices[:8]])
    sampler.note([result(index, 1.0, 1.0) for index in indices[8:]])

    assert sorted(draw(sampler)) == indices[:8]


def test_unknown_prompts_are_preferred_too():
    sampler = curriculum(uniform=1e-9)
    indices = NumberedPrompts(PROMPTS).indices.tolist()
    sampler.note([result(index, 0.0, 0.0) for index in indices[:30]])

    assert set(draw(sampler)) <= set(indices[30:])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_where_nothing_is_inside_all_prompts_are_drawn(rate):
    sampler = curriculum(uniform=1e-9)
    sampler.note([result(index, rate) for index in NumberedPrompts(PROMPTS).indices.tolist()])

    assert len({index for step in range(100) for index in draw(sampler, taken=step)}) == PROMPTS


def test_prompts_in_flight_wait_until_nothing_else_is_left():
    indices = NumberedPrompts(PROMPTS).indices.tolist()
    waiting = indices[:35]

    drawn = draw(curriculum(), count=8, in_flight=waiting)

    assert set(drawn[:5]) == set(indices[35:])
    assert set(drawn[5:]) <= set(waiting)


def test_more_than_there_are_come_again_only_when_all_came():
    drawn = draw(curriculum(), count=2 * PROMPTS + 3)

    assert set(Counter(drawn[: 2 * PROMPTS]).values()) == {2}


def test_tasks_without_end_are_refused_with_the_way_out():
    prompts = NumberedPrompts()
    prompts.returning = False

    with pytest.raises(ConfigError, match=r"--data\.train", check=has_code("data/endless-tasks")):
        Curriculum(CurriculumConfig()).begin(prompts)


def test_a_lower_bound_above_the_upper_one_is_refused():
    with pytest.raises(ValidationError, match=r"low is 0.8; expected at most high = 0.3"):
        CurriculumConfig(low=0.8, high=0.3)


def test_without_uniform_draws_nothing_would_be_measured_again():
    with pytest.raises(ValidationError, match="greater than 0"):
        CurriculumConfig(uniform=0.0)
