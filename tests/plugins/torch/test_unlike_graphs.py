"""A layer that is recomputed by another compiled graph than its forward pass, as torch does while graphs are new."""

import pytest
import torch
from torch.utils.checkpoint import CheckpointError

from rlhf_torch.models.layers import decoder_layers
from rlhf_torch.rows.token_limit import ATTEMPTS, TokenLimit


@pytest.fixture
def trained(start, sgd_spec, models, make_batch, make_plan):
    """Train one step with a first layer whose calls for which ``keeps`` is true keep one tensor more; return the
    changes of the weights, and the number of calls."""

    def train(keeps):
        backend = start(sgd_spec(models["qwen3"], max_tokens=40), gradient_checkpointing=True)
        mlp = decoder_layers(backend._model.lm.model)[0].mlp
        plain, calls = mlp.forward, 0

        def forward(states):
            nonlocal calls
            calls += 1
            found = plain(states)
            return found + 0.0 * found.detach().requires_grad_().sin() if keeps(calls) else found

        mlp.forward = forward
        before = {name: w.detach().clone() for name, w in backend._model.named_weights()}
        batch = make_batch()
        backend.train_step(batch, make_plan(batch))
        after = backend._model.named_weights()
        return {name: w.detach() - before[name] for name, w in after}, calls

    return train


@pytest.mark.parametrize("unlike", [1, 3])
def test_gradients_are_computed_again_and_are_those_of_equal_graphs(trained, unlike):
    expected, calls = trained(lambda _: False)

    found, more = trained(lambda call: call == unlike)

    assert more > calls
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_graphs_that_never_settle_are_an_error_that_says_what_to_turn_off(trained):
    with pytest.raises(CheckpointError) as raised:
        trained(lambda call: call % 2 == 1)

    assert "gradient_checkpointing" in raised.value.__notes__[0]
    assert ATTEMPTS > 1


def test_ranks_that_cannot_begin_a_pass_again_say_at_once_what_to_turn_off():
    calls = 0

    def compute():
        nonlocal calls
        calls += 1
        raise CheckpointError("other tensors")

    with pytest.raises(CheckpointError) as raised:
        TokenLimit(300, torch.device("cpu")).within(compute, total=0, longest=0)

    assert calls == 1
    assert "gradient_checkpointing" in raised.value.__notes__[0]
