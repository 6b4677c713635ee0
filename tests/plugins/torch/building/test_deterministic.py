"""Deterministic kernels: on for the passes of an update and off beside them, with the same numbers on a CPU."""

import pytest
import torch

from rlhf_torch.building.deterministic import NO_KERNEL, deterministic_kernels
from rlhf_torch.models.layers import decoder_layers


def is_on():
    """Whether torch takes deterministic kernels or raises: one that only warns leaves attention as it is."""
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled() and not only_warns


@pytest.fixture
def seen(start, sgd_spec, models, make_batch, make_plan):
    """Train one step, then score; return where the switch was on, and the change of the weights."""

    def train(**options):
        backend = start(sgd_spec(models["qwen3"]), **options)
        mlp = decoder_layers(backend._model.lm.model)[0].mlp
        switch = {"forward": [], "backward": []}
        mlp.register_forward_hook(lambda *_: switch["forward"].append(is_on()))
        mlp.register_full_backward_hook(lambda *_: switch["backward"].append(is_on()))
        before = {name: w.detach().clone() for name, w in backend._model.named_weights()}
        batch = make_batch()
        backend.train_step(batch, make_plan(batch))
        switch["after"] = [is_on()]
        changes = {n: w.detach() - before[n] for n, w in backend._model.named_weights()}
        switch["forward"].append("scored")
        backend.logprobs(batch.trajectories)
        return switch, changes

    return train


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}])
def test_the_switch_is_on_in_both_passes_of_an_update_and_off_where_rows_are_scored(seen, options):
    switch, changes = seen(deterministic=True, **options)
    plain, expected = seen(**options)

    place = switch["forward"].index("scored")
    assert all(switch["forward"][:place])
    assert place > 0
    assert switch["backward"]
    assert all(switch["backward"])
    assert switch["forward"][place + 1 :] == [False]
    assert switch["after"] == [False]
    assert not any(plain["backward"])
    assert all(torch.equal(changes[name], expected[name]) for name in expected)


@pytest.mark.parametrize("before", [(False, False), (True, True)])
def test_the_switch_is_as_it_was_also_after_an_error(before):
    enabled, only_warns = before
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(enabled, warn_only=only_warns)
    try:
        inside = []
        with pytest.raises(ZeroDivisionError), deterministic_kernels():
            inside += [is_on(), torch.utils.deterministic.fill_uninitialized_memory, 1 / 0]
        with deterministic_kernels():
            inside += [is_on(), torch.utils.deterministic.fill_uninitialized_memory]
        assert inside == [True, False]
        assert torch.are_deterministic_algorithms_enabled() == enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() == only_warns
        assert torch.utils.deterministic.fill_uninitialized_memory == fills
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_operation_without_such_a_kernel_says_what_to_change():
    with pytest.raises(RuntimeError) as raised, deterministic_kernels():
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))

    assert raised.value.__notes__ == [NO_KERNEL]
