"""Memory that does not suffice for a micro-batch: half of its tokens are tried, and the step is that of the smaller
micro-batches. No GPU is needed: the model raises torch's error for rows that are too long."""

import logging

import numpy as np
import pytest
import torch

from rlhf_torch.rows.token_limit import TokenLimit

ENOUGH_FOR = 40
"""Tokens of a row that the device here has memory for. The longest row of a batch has 25, all of it about 90."""


@pytest.fixture
def short_of_memory(start, sgd_spec, models):
    """A backend on a device with memory for rows of so many tokens, and the attempts that failed."""

    def build(enough_for=ENOUGH_FOR, **options):
        backend = start(sgd_spec(models["qwen3"], **options))
        failed = []

        def embed(module, inputs):
            tokens = inputs[0].shape[-1]
            if tokens > enough_for:
                failed.append(tokens)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

        backend.module().model.get_input_embeddings().register_forward_pre_hook(embed)
        return backend, failed

    return build


def moved(backend, batch, plan):
    before = {name: weight.detach().clone() for name, weight in backend._model.named_weights()}
    outcome = backend.train_step(batch, plan)
    after = dict(backend._model.named_weights())
    return {name: before[name] - after[name].detach() for name in before}, outcome


def test_the_step_is_that_of_smaller_micro_batches(
    short_of_memory, start, sgd_spec, models, make_batch, make_plan, caplog
):
    batch = make_batch()
    plan = make_plan(batch, return_logprobs=True)
    backend, failed = short_of_memory()
    with caplog.at_level(logging.WARNING):
        found, outcome = moved(backend, batch, plan)

    limit = backend._limit.tokens
    assert failed
    assert limit < int(batch.trajectories.num_tokens.sum())
    asked = start(sgd_spec(models["qwen3"], max_tokens=limit))
    expected, asked_outcome = moved(asked, batch, plan)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    np.testing.assert_array_equal(outcome.logprobs, asked_outcome.logprobs)
    assert f"set --train.max_tokens_per_micro_batch {limit}" in caplog.text


def test_the_gradient_is_that_of_one_micro_batch(
    short_of_memory, start, sgd_spec, models, make_batch, make_plan
):
    batch = make_batch()
    plan = make_plan(batch)
    found, _ = moved(short_of_memory()[0], batch, plan)
    whole, _ = moved(start(sgd_spec(models["qwen3"])), batch, plan)

    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_the_limit_stays_fallen(short_of_memory, make_batch, make_plan):
    backend, failed = short_of_memory()
    batch = make_batch()
    backend.train_step(batch, make_plan(batch))
    attempts = len(failed)

    backend.train_step(batch, make_plan(batch))
    backend.logprobs(batch.trajectories)

    assert len(failed) == attempts


def test_scoring_falls_back_too(short_of_memory, start, sgd_spec, models, make_batch):
    trajectories = make_batch().trajectories
    backend, failed = short_of_memory()

    found = backend.logprobs(trajectories)

    assert failed
    expected = start(sgd_spec(models["qwen3"], max_tokens=backend._limit.tokens))
    np.testing.assert_array_equal(found, expected.logprobs(trajectories))


def test_one_row_that_does_not_fit_ends_the_step_with_advice(
    short_of_memory, make_batch, make_plan
):
    backend, _ = short_of_memory(enough_for=4)
    batch = make_batch()

    with pytest.raises(torch.OutOfMemoryError) as raised:
        backend.train_step(batch, make_plan(batch))

    longest = int(batch.trajectories.num_tokens.max())
    assert f"longest sequence has {longest} tokens" in raised.value.__notes__[0]


def test_a_checkpoint_has_the_limit_unless_another_one_is_asked_for(
    short_of_memory, start, sgd_spec, models, make_batch, make_plan, tmp_path
):
    backend, _ = short_of_memory()
    batch = make_batch()
    backend.train_step(batch, make_plan(batch))
    backend.save(tmp_path)

    again = start(sgd_spec(models["qwen3"]))
    again.load(tmp_path)
    other = start(sgd_spec(models["qwen3"], max_tokens=64))
    other.load(tmp_path)

    assert again._limit.tokens == backend._limit.tokens
    assert other._limit.tokens == 64


def test_ranks_that_cannot_begin_a_pass_again_say_which_option_makes_passes_smaller():
    limit = TokenLimit(300, torch.device("cpu"))

    def compute():
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError) as raised:
        limit.within(compute, total=0, longest=0)

    assert "up to 300 tokens" in raised.value.__notes__[0]
    assert "train.max_tokens_per_micro_batch lower" in raised.value.__notes__[0]
