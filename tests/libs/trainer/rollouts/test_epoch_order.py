"""Without a sampler each prompt comes once an epoch, in the order of its epoch."""

from rlhf_testing.conformance.prompt_draws import NumberedPrompts
from rlhf_trainer.rollouts.prompts import EpochOrder


def test_draws_go_through_the_orders_of_the_epochs():
    prompts = NumberedPrompts(5)
    order = EpochOrder(prompts)

    drawn = [order.at(number) for number in range(15)]

    assert drawn == [index for epoch in range(3) for index in prompts.order(epoch).tolist()]


def test_a_draw_is_a_function_of_how_many_were_drawn():
    prompts = NumberedPrompts()
    order = EpochOrder(prompts)
    whole = [order.at(number) for number in range(30)]
    another = EpochOrder(prompts)

    for number in (29, 0, 13):
        assert another.at(number) == whole[number]
