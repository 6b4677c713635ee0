"""The value after a truncated response: that of one more action behind it."""

import asyncio

import numpy as np

from rlhf_trainer.learning.model_outputs import final_values, one_more_action


class Critic:
    """The value before an action is the sum of all tokens before it."""

    def __init__(self):
        self.calls = 0

    async def values(self, batch):
        self.calls += 1
        found = []
        for row in range(len(batch)):
            tokens = batch.tokens_of(row)
            start = batch.token_offsets[row]
            mask = batch.action_mask[start : start + len(tokens)]
            found += [float(tokens[:place].sum()) for place in np.flatnonzero(mask)]
        return np.array(found, dtype=np.float32)


def test_truncated_rows_get_the_value_behind_them_and_finished_ones_0(batch_of):
    batch = batch_of({(1, 0): "pAB!", (1, 1): "pAB", (2, 0): "pqCdE!"})

    values = asyncio.run(final_values(batch, Critic()))

    expected = [sum(map(ord, "pAB")), 0.0, sum(map(ord, "pqCdE"))]
    np.testing.assert_array_equal(values, expected)


def test_the_critic_is_not_asked_when_nothing_is_truncated(batch_of):
    critic = Critic()

    values = asyncio.run(final_values(batch_of({(1, 0): "pA", (1, 1): "pB"}), critic))

    np.testing.assert_array_equal(values, [0.0, 0.0])
    assert critic.calls == 0


def test_one_more_action_leaves_the_tokens_before_it_alone(batch_of):
    batch = batch_of({(1, 0): "pAB!", (2, 0): "pqC!"})

    longer = one_more_action(batch)

    assert longer.num_actions.tolist() == [1, 1]
    for row in range(2):
        np.testing.assert_array_equal(longer.tokens_of(row)[:-1], batch.tokens_of(row))
