"""Prompts that are computed once: which, and that nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.torch.conftest import gradients

from rlhf_core.contracts import (
    Normalizers,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
    ValueObjective,
)
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_testing.tiny import FAMILIES
from rlhf_torch.rows.packed_rows import pack_rows
from rlhf_torch.rows.prompt_sharing import prompt_lengths, shared_starts, sharing_micro_batches

CPU = torch.device("cpu")


def row_of(uid, prompt, response, *, gap=0):
    """``gap`` tokens of an environment stand in the middle of the response."""
    tokens = np.array([*prompt, *response], dtype=np.int32)
    mask = np.arange(len(tokens)) >= len(prompt)
    turns = [Turn(start=len(prompt), end=len(tokens))]
    if gap:
        first = len(prompt) + 1
        mask[first : first + gap] = False
        turns = [
            Turn(start=len(prompt), end=first),
            Turn(start=first + gap, end=len(tokens)),
        ]
    size = int(mask.sum())
    return Trajectory(
        uid=uid,
        token_ids=tokens,
        action_mask=mask,
        rollout_logprobs=np.full(size, -2.0, dtype=np.float32),
        weight_version=np.zeros(size, dtype=np.int32),
        turns=tuple(turns),
        reward=1.0,
    )


def grouped(num_groups=4, samples=3, seed=0):
    """Groups with a prompt of 5 to 12 tokens; in the last one a row has a prompt of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(num_groups):
        prompt = rng.integers(4, 100, rng.integers(5, 13))
        for sample in range(samples):
            response = rng.integers(4, 100, rng.integers(4, 9))
            own = prompt + 1 if (group, sample) == (num_groups - 1, 1) else prompt
            rows.append(row_of(Uid(0, group, sample), own, response, gap=2 * (sample == 2)))
    return TrajectoryColumns.from_trajectories(rows)


@pytest.fixture
def batch():
    trajectories = grouped()
    rng = np.random.default_rng(1)
    size = int(trajectories.num_actions.sum())
    columns = {
        name: rng.normal(size=size).astype(np.float32)
        for name in ("advantages", "ref_logprobs", "values", "returns")
    }
    return TrainBatch(trajectories=trajectories, columns=columns)


@pytest.fixture
def plan(batch):
    rows = batch.trajectories
    totals = Normalizers(
        num_actions=int(rows.num_actions.sum()), num_sequences=len(rows), max_actions=10
    )
    return StepPlan(normalizers=totals, on_policy=True, kl_coef=0.5, entropy_coef=0.1)


def test_beginnings_are_shared_within_a_group():
    rows = [
        row_of(Uid(0, 0, 0), [7, 8, 9], [20, 21]),
        row_of(Uid(0, 0, 1), [7, 8, 9], [20, 22]),
        row_of(Uid(0, 0, 2), [7, 8], [20, 22]),
        row_of(Uid(0, 1, 0), [7, 5], [20]),  # another group
        row_of(Uid(0, 1, 1), [7, 5], [30]),
        row_of(Uid(0, 2, 0), [7, 5], [30, 31]),  # a third one with the same prompt
        row_of(Uid(0, 3, 0), [7], [5, 30]),
    ]
    batch = TrajectoryColumns.from_trajectories(rows)
    assert prompt_lengths(batch).tolist() == [3, 3, 2, 2, 2, 2, 1]
    starts = shared_starts(batch)
    assert starts.lengths.tolist() == [0, 4, 2, 0, 2, 3, 0]
    assert starts.sources.tolist() == [0, 0, 0, 3, 3, 4, 6]


def test_rows_without_actions_share_their_beginning_in_a_group_alone():
    silent = replace(
        row_of(Uid(0, 0, 1), [7, 8], [20]),
        action_mask=np.zeros(3, dtype=bool),
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        weight_version=np.zeros(0, dtype=np.int32),
        turns=(),
    )
    others = [replace(silent, uid=Uid(0, group)) for group in (1, 2)]
    rows = [row_of(Uid(0, 0, 0), [7, 8], [21]), silent, *others]
    batch = TrajectoryColumns.from_trajectories(rows)
    assert shared_starts(batch).lengths.tolist() == [0, 2, 0, 0]


def test_tokens_of_other_images_are_other_tokens():
    """All rows have the same tokens; the image at tokens 2 to 4 of the last one is another."""
    images = [
        MediaRef(sha256=digit * 64, num_bytes=9, format="png", width=2, height=2)
        for digit in ("a", "a", "b")
    ]
    rows = [
        replace(
            row_of(Uid(0, 0, sample), [7, 8, 5, 5, 5, 9], [20 + sample]),
            media=(MediaSpan(start=2, length=3, image=image),),
        )
        for sample, image in enumerate(images)
    ]

    starts = shared_starts(TrajectoryColumns.from_trajectories(rows))

    assert starts.lengths.tolist() == [0, 6, 2]


def test_a_shared_prompt_is_in_the_row_once(batch):
    rows = batch.trajectories
    every = np.arange(len(rows))
    whole = pack_rows(rows, every, CPU)
    packed = pack_rows(rows, every, CPU, share_prompts=True)

    saved = int(shared_starts(rows).lengths.sum())
    assert saved > 0
    assert len(packed.input_ids) == len(whole.input_ids) - saved
    assert packed.targets.tolist() == whole.targets.tolist()
    for name in ("input_ids", "position_ids"):
        before = [getattr(one, name)[one.predictors].tolist() for one in (packed, whole)]
        assert before[0] == before[1]


def test_little_is_not_worth_it():
    rng = np.random.default_rng(0)
    rows = [row_of(Uid(0, 0, n), [5, 6], rng.integers(4, 100, 60)) for n in range(4)]
    trajectories = TrajectoryColumns.from_trajectories(rows)
    packed = pack_rows(trajectories, np.arange(4), CPU, share_prompts=True)
    assert len(packed.input_ids) == int(trajectories.num_tokens.sum())


def seen_tokens(backend):
    """Note how many tokens the model gets in each pass."""
    passes = []
    backend._model.lm.model.base_model.register_forward_pre_hook(
        lambda module, args, given: passes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    return passes


def test_layers_that_carry_a_state_compute_each_sequence_from_its_first_token(
    start, sgd_spec, models, batch, plan
):
    runs, tokens = [], []
    for share in (False, True):
        backend = start(sgd_spec(models["qwen3_5"]), compute_dtype="float32", share_prompts=share)
        passes = seen_tokens(backend)
        runs.append(gradients(backend, batch, plan)[0])
        tokens.append(sum(passes))

    assert tokens[0] == tokens[1] == batch.trajectories.num_tokens.sum()
    torch.testing.assert_close(runs[1], runs[0], atol=0.0, rtol=0.0)


@pytest.mark.parametrize("max_tokens", [16384, 45])
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"qwen3_5"}))
def test_gradients_and_metrics_stay_the_same(
    start, sgd_spec, models, batch, plan, refs, family, max_tokens
):
    spec = sgd_spec(models[family], max_tokens=max_tokens, kl_estimator=refs.k3, entropy_bonus=True)
    runs, tokens = [], []
    for share in (False, True):
        backend = start(spec, compute_dtype="float32", share_prompts=share)
        passes = seen_tokens(backend)
        runs.append(gradients(backend, batch, plan))
        tokens.append(sum(passes))

    (whole, expected), (shared, actual) = runs
    assert tokens[1] < 0.9 * tokens[0]
    torch.testing.assert_close(shared, whole, atol=1e-6, rtol=1e-4)
    for name in ("loss/policy", "loss/kl", "loss/entropy", "policy/entropy", "policy/grad_norm"):
        assert actual[name].value() == pytest.approx(expected[name].value(), rel=1e-5)


def test_recomputed_layers_share_prompts_too(start, sgd_spec, models, batch, plan):
    spec = sgd_spec(models["qwen3"])
    runs = [
        gradients(start(spec, compute_dtype="float32", **options), batch, plan)[0]
        for options in ({"share_prompts": False}, {"gradient_checkpointing": True})
    ]
    torch.testing.assert_close(runs[1], runs[0], atol=1e-6, rtol=1e-4)


# A prompt that is shared is a tree of one branching; CI runs the test of compiled trees.
@pytest.mark.matrix
# Inductor itself uses what torch has deprecated.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_compiled_layers_share_prompts_too(start, sgd_spec, models, batch, plan):
    spec = sgd_spec(models["qwen3"], max_tokens=60)
    runs = [
        gradients(start(spec, compute_dtype="float32", **options), batch, plan)[0]
        for options in ({"share_prompts": False}, {"compile": True})
    ]
    torch.testing.assert_close(runs[1], runs[0], atol=1e-6, rtol=1e-4)


def test_a_critic_shares_prompts_too(start, make_spec, refs, models, batch, plan):
    spec = make_spec(
        models["qwen3"],
        role="critic",
        head="value",
        objective=ValueObjective(aggregation="token-mean"),
        optimizer=refs.sgd,
        max_grad_norm=None,
    )
    runs = []
    for share in (False, True):
        backend = start(spec, compute_dtype="float32", share_prompts=share)
        moved, _ = gradients(backend, batch, plan)
        runs.append((moved, torch.from_numpy(backend.values(batch.trajectories))))
    torch.testing.assert_close(runs[1], runs[0], atol=1e-5, rtol=1e-4)


def test_log_probs_stay_the_same(start, make_spec, models, batch):
    found = [
        start(
            make_spec(models["qwen3"], objective=None, optimizer=None),
            compute_dtype="float32",
            share_prompts=share,
        ).logprobs(batch.trajectories)
        for share in (False, True)
    ]
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_equal_steps_are_equal_to_the_bit(start, make_spec, models, batch, plan):
    digests = []
    for _ in range(2):
        backend = start(make_spec(models["qwen3"]))
        backend.train_step(batch, plan)
        digests.append(backend.checksum())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("share_prompts", [False, True])
@pytest.mark.parametrize("max_tokens", [20, 45, 1000])
def test_rows_of_a_unit_come_into_one_micro_batch(share_prompts, max_tokens):
    batch = grouped()

    cut = sharing_micro_batches(batch, max_tokens, share_prompts=share_prompts, rows_per_unit=2)

    assert sorted(np.concatenate(cut).tolist()) == list(range(len(batch)))
    for rows in cut:
        pairs = rows.reshape(-1, 2)
        assert (pairs[:, 0] % 2 == 0).all()
        assert (pairs[:, 1] == pairs[:, 0] + 1).all()
        tokens = batch.num_tokens[rows].sum()
        if share_prompts:
            tokens = len(pack_rows(batch, rows, CPU, share_prompts=True).input_ids)
        assert tokens <= max_tokens or len(rows) == 2
