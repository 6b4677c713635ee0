"""NEFTune's noise, by itself and in updates."""

import math

import numpy as np
import pytest
import torch

from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.packed.embedding_noise import noise_of
from rlhf_torch.packed.packing import PackedLayout

NOISE = {"embedding_noise": 5.0}


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_noise_by_hand():
    embeddings = torch.zeros(1, 3, 4)
    uniform = torch.empty(1, 3, 4).uniform_(-1, 1, generator=drawn(0))

    noise = noise_of(embeddings, torch.tensor([1, 9, 9]), alpha=6.0, generator=drawn(0))

    # 6 / sqrt(1 * 4) = 3 and 6 / sqrt(9 * 4) = 1
    torch.testing.assert_close(noise, uniform * torch.tensor([3.0, 1.0, 1.0])[:, None])


@pytest.mark.parametrize(("length", "width"), [(10, 64), (500, 16)])
def test_the_norm_of_a_sequences_noise_depends_on_neither_length_nor_width(length, width):
    lengths = torch.full((length,), length)
    noise = noise_of(torch.zeros(length, width), lengths, alpha=15.0, generator=drawn(1))

    # The mean square of a uniform number in [-1, 1] is 1/3; over 640 and more of them it is so to a few percent.
    assert noise.norm().item() == pytest.approx(15 / math.sqrt(3), rel=0.1)


def test_sequences_of_one_row_have_the_noise_of_their_own_lengths(models):
    lm = load_causal_lm(str(models["qwen3"]), dtype="float32")
    tokens, embeddings = torch.arange(20), lm.model.get_input_embeddings()
    layout = PackedLayout([0, 4, 20], torch.device("cpu"))
    seen = []

    with lm.noise.on(5.0, seed=0):
        hook = embeddings.register_forward_hook(lambda *call: seen.append(call[2][0]))
        lm.hidden(tokens, layout.positions(), layout)
        hook.remove()

    plain = embeddings.weight[tokens]  # (N, D)
    moved = (seen[0] - plain).abs().amax(-1)  # (N,)
    bounds = 5.0 / torch.sqrt(torch.tensor([4.0] * 4 + [16.0] * 16) * plain.shape[1])
    assert (moved <= bounds).all()
    assert (moved > 0.5 * bounds).all(), moved / bounds


def test_an_update_is_noisy_and_scores_are_not(start, make_spec, make_batch, make_plan, models):
    batch = make_batch()
    plain, noisy = (start(make_spec(models["qwen3"], **more)) for more in ({}, NOISE))

    assert (plain.logprobs(batch.trajectories) == noisy.logprobs(batch.trajectories)).all()
    for backend in (plain, noisy):
        backend.train_step(batch, make_plan(batch))
    assert plain.checksum() != noisy.checksum()
    again = start(make_spec(models["qwen3"], **NOISE))
    again.train_step(batch, make_plan(batch))
    assert again.checksum() == noisy.checksum()


def test_a_resumed_run_draws_the_same_noise(
    start, make_spec, make_batch, make_plan, models, tmp_path
):
    spec, batch = make_spec(models["qwen3"], **NOISE), make_batch()
    whole, begun, resumed = (start(spec) for _ in range(3))
    for _ in range(3):
        whole.train_step(batch, make_plan(batch))
    for _ in range(2):
        begun.train_step(batch, make_plan(batch))
    begun.save(tmp_path)
    torch.rand(7)  # the global random state plays no part
    resumed.load(tmp_path)
    resumed.train_step(batch, make_plan(batch))

    assert resumed.checksum() == whole.checksum()


def test_beginnings_are_not_shared_under_noise(start, make_spec, models):
    lengths = np.array([5, 9])
    backend = start(make_spec(models["qwen3"], **NOISE))
    plain = start(make_spec(models["qwen3"]))

    assert plain._shares(lengths)
    assert not backend._shares(lengths)
