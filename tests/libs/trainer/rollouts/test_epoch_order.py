"""Without a sampler each prompt comes once an epoch, in the order of its epoch."""

from rlhf_core.contracts import DrawRequest
from rlhf_testing.conformance.prompt_draws import Draws, NumberedPrompts
from rlhf_trainer.rollouts.prompts import EpochOrder


def test_draws_go_through_the_orders_of_the_epochs():
    prompts = NumberedPrompts(5)

    drawn = Draws(EpochOrder(), prompts).rounds(3, 4, 8)

    assert drawn == [index for epoch in range(3) for index in prompts.order(epoch).tolist()]


def test_a_draw_is_a_function_of_how_many_were_drawn():
    whole = Draws(EpochOrder()).rounds(30)
    order = EpochOrder()
    order.begin(NumberedPrompts())

    for taken in (29, 0, 13):
        request = DrawRequest(count=1, taken=taken, step=1)
        assert order.draw(request) == [whole[taken]]
