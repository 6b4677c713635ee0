"""Tensors that are out of their memory and come back: values, views, ties, and what is freed."""

import pytest
import torch
from torch import nn

from rlhf_torch.training.host_memory import HostMemory, expected_moments

CPU = torch.device("cpu")


@pytest.fixture
def memory():
    held = HostMemory(CPU)
    yield held
    held.close()


def test_values_come_back_to_the_bit_and_the_memory_is_free_meanwhile(memory):
    tensors = [torch.randn(3, 5), torch.arange(7), torch.full((2,), float("nan")).bfloat16()]
    before = [tensor.clone() for tensor in tensors]

    memory.take(tensors)
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [0, 0, 0]
    assert memory.num_bytes == 3 * 5 * 4 + 7 * 8 + 2 * 2
    memory.give_back()

    assert memory.num_bytes == 0
    for tensor, expected in zip(tensors, before, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)


def test_views_and_ties_are_still_views_and_ties(memory):
    """Two names of one weight, and a view of a flat buffer, are moved once and go on sharing."""
    flat = torch.arange(12.0)
    view, tied = flat[3:9].view(2, 3), nn.Parameter(flat.view(3, 4))

    memory.take([flat, view, tied])
    assert memory.num_bytes == 48
    memory.give_back()
    flat.mul_(2)

    assert view[0, 0] == 6.0
    assert tied[2, 3] == 22.0


def test_what_is_out_already_stays_out_and_more_may_follow(memory):
    state, weights = torch.ones(4), torch.full((4,), 2.0)

    memory.take([state])
    memory.take([state, weights])
    memory.give_back()

    assert (state.sum(), weights.sum()) == (4.0, 8.0)


def test_host_memory_is_used_again(memory):
    tensor = torch.ones(16)
    memory.take([tensor])
    (first,) = [host.data_ptr() for _, host in memory._out]
    memory.give_back()
    memory.take([tensor])

    assert [host.data_ptr() for _, host in memory._out] == [first]
    memory.give_back()


def test_a_tensor_of_another_device_stays():
    """AdamW keeps the number of its steps on the host, where the kernel reads it."""
    memory = HostMemory(torch.device("meta"))
    steps, moment = torch.ones(()), torch.ones(3, device="meta")

    memory.take([steps])

    assert steps == 1.0
    assert memory.num_bytes == 0
    assert moment.device.type == "meta"


def test_an_optimizer_goes_on_as_if_nothing_had_moved(memory):
    def steps(moves):
        torch.manual_seed(3)
        model = nn.Linear(6, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for seed in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, seed - 0.5)
            optimizer.step()
            optimizer.zero_grad()
            if moves:
                state = [value for one in optimizer.state.values() for value in one.values()]
                memory.take([*model.parameters(), *state])
                memory.give_back()
        return [parameter.detach().clone() for parameter in model.parameters()]

    for moved, stayed in zip(steps(moves=True), steps(moves=False), strict=True):
        assert torch.equal(moved, stayed)


def test_emptied_tensors_are_not_copied_and_come_back_as_zeros(memory):
    """Gradients that were applied: nobody reads them again, and their memory is wanted all the same."""
    moment, gradient = torch.ones(4), torch.full((6,), 3.0)

    memory.take([moment], emptied=[gradient])
    assert memory.num_bytes == 16
    assert gradient.untyped_storage().nbytes() == 0
    memory.give_back()

    assert torch.equal(gradient, torch.zeros(6))
    assert torch.equal(moment, torch.ones(4))


def test_a_return_that_has_begun_is_finished_before_the_next_move(memory):
    moment = torch.arange(5.0)

    for _ in range(3):
        memory.take([moment])
        memory.begin_return()
    memory.finish_return()

    assert memory.num_bytes == 0
    assert torch.equal(moment, torch.arange(5.0))


def test_memory_that_was_prepared_is_used(memory):
    """Two moments of a weight do not exist before the first update, and their memory does."""
    weight = torch.ones(16)
    memory.prepare([weight], copies=3)
    state = [weight, torch.full((16,), 2.0), torch.full((16,), 3.0)]

    memory.take(state)
    memory.give_back()

    assert [float(one[0]) for one in state] == [1.0, 2.0, 3.0]


def test_adams_moments_are_expected_until_they_are_there():
    weight = nn.Parameter(torch.ones(2))
    adam, plain = torch.optim.AdamW([weight]), torch.optim.SGD([weight])
    assert (expected_moments(adam), expected_moments(plain)) == (2, 0)

    weight.grad = torch.ones(2)
    adam.step()

    assert expected_moments(adam) == 0
