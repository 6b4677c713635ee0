"""Rows whose groups are trees: every node is computed once, and nothing else changes."""

import numpy as np
import pytest
import torch
from tests.plugins.torch.conftest import gradients
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

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
from rlhf_testing.tiny import FAMILIES
from rlhf_torch.packed.branches import BranchLayout
from rlhf_torch.packed.shared_starts import SharedLayout
from rlhf_torch.rows import prompt_sharing
from rlhf_torch.rows.packed_rows import pack_rows
from rlhf_torch.rows.prompt_sharing import sharing_micro_batches

CPU = torch.device("cpu")
LAYOUTS = {"branches": BranchLayout, "whole": SharedLayout}


@pytest.fixture(params=LAYOUTS)
def layout(request, monkeypatch):
    """Which way attention goes, whatever it costs."""
    is_cheaper = request.param == "branches"
    monkeypatch.setattr(
        "rlhf_torch.rows.packed_rows.branches_are_cheaper", lambda lengths, starts: is_cheaper
    )
    return LAYOUTS[request.param]


def row_of(uid, tokens, mask):
    """A trajectory with a turn for each run of actions."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    size = int(mask.sum())
    return Trajectory(
        uid=uid,
        token_ids=np.array(tokens, dtype=np.int32),
        action_mask=mask,
        rollout_logprobs=np.full(size, -2.0, dtype=np.float32),
        weight_version=np.zeros(size, dtype=np.int32),
        turns=tuple(Turn(start=int(a), end=int(b)) for a, b in edges.reshape(-1, 2)),
        reward=1.0,
    )


def random_trees(seed, groups=3):
    """Groups of one to seven sequences that fork at any depth, go on from one another, end early or are equal."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        paths = [[4 + group, *rng.integers(4, 100, rng.integers(6, 24)).tolist()]]
        for _ in range(int(rng.integers(0, 7)) if group else 6):
            before = paths[rng.integers(len(paths))]
            depth = int(rng.integers(2, len(before) + 1))
            tail = rng.integers(4, 100, rng.integers(0, 9)).tolist()
            paths.append(before[:depth] + tail)
        for sample, path in enumerate(paths):
            mask = rng.random(len(path)) < 0.6
            mask[0], mask[-1] = False, True
            rows.append(row_of(Uid(0, group, sample), path, mask))
    return TrajectoryColumns.from_trajectories(rows)


def nodes_of(batch, *, actions=False):
    """Different beginnings of the rows of a group: the nodes of its tree; of those alone that end with an action."""
    return {
        (group, tuple(batch.tokens_of(row)[: end + 1].tolist()))
        for row, group in enumerate(batch.group.tolist())
        for end in range(int(batch.num_tokens[row]))
        if not actions or batch.action_mask[batch.token_offsets[row] + end]
    }


def train_batch(trajectories, seed=1):
    rng = np.random.default_rng(seed)
    size = int(trajectories.num_actions.sum())
    columns = {
        name: rng.normal(size=size).astype(np.float32)
        for name in ("advantages", "ref_logprobs", "values", "returns")
    }
    return TrainBatch(trajectories=trajectories, columns=columns)


def plan_of(batch, **changes):
    totals = Normalizers(
        num_actions=int(batch.num_actions.sum()), num_sequences=len(batch), max_actions=30
    )
    terms = {"on_policy": True, "kl_coef": 0.5, "entropy_coef": 0.1} | changes
    return StepPlan(normalizers=totals, **terms)


def both(start, spec, batch, plan):
    """What a step does to each weight, without and with sharing."""
    return [
        gradients(start(spec, compute_dtype="float32", share_prompts=share), batch, plan)[0]
        for share in (False, True)
    ]


def assert_alike(shared, whole):
    """To 1e-6 of the largest gradient, in float32."""
    largest = max(float(gradient.abs().max()) for gradient in whole.values())
    torch.testing.assert_close(shared, whole, atol=1e-6 * max(1.0, largest), rtol=0.0)


def layouts_seen(monkeypatch):
    seen = []
    for kind in LAYOUTS.values():
        attend = kind.attend

        def noting(self, *args, attend=attend, **options):
            seen.append(type(self))
            return attend(self, *args, **options)

        monkeypatch.setattr(kind, "attend", noting)
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_each_node_is_in_the_row_once_at_its_depth(seed, layout):
    trees = random_trees(seed)
    every = np.arange(len(trees))

    packed = pack_rows(trees, every, CPU, share_prompts=True)

    whole = pack_rows(trees, every, CPU)
    assert isinstance(packed.layout, layout)
    assert len(packed.input_ids) == len(nodes_of(trees))
    assert len(packed.targets) == len(nodes_of(trees, actions=True))
    assert packed.num_actions == whole.num_actions == int(trees.num_actions.sum())
    assert packed.each(packed.targets).tolist() == whole.targets.tolist()
    for name in ("input_ids", "position_ids"):
        read = packed.each(getattr(packed, name)[packed.predictors])
        assert read.tolist() == getattr(whole, name)[whole.predictors].tolist()


@pytest.mark.parametrize("max_tokens", [16384, 60])
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"qwen3_5"}))  # whose state is not shared
def test_gradients_are_those_of_whole_sequences(
    start, sgd_spec, models, refs, family, max_tokens, layout, monkeypatch
):
    """Gemma 3 looks 8 tokens back in every other layer."""
    seen = layouts_seen(monkeypatch)
    batch = train_batch(random_trees(FAMILIES.index(family)))
    spec = sgd_spec(models[family], max_tokens=max_tokens, kl_estimator=refs.k3, entropy_bonus=True)

    whole, shared = both(start, spec, batch, plan_of(batch.trajectories))

    assert_alike(shared, whole)
    assert layout in seen


SHAPE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
}
OTHERS = {
    "soft caps": lambda: Gemma2Config(
        **SHAPE, sliding_window=8, query_pre_attn_scalar=8, attn_logit_softcapping=2.0
    ),
    "yarn": lambda: LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "llama3": lambda: LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_soft_caps_and_kinds_of_rotation_too(start, sgd_spec, tmp_path, kind, layout):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(OTHERS[kind](), dtype=torch.float32).save_pretrained(tmp_path)
    batch = train_batch(random_trees(0))

    whole, shared = both(start, sgd_spec(tmp_path), batch, plan_of(batch.trajectories))

    assert_alike(shared, whole)


def test_recomputed_layers_share_trees_too(start, sgd_spec, models, layout):
    batch = train_batch(random_trees(1))
    spec, plan = sgd_spec(models["gemma3"]), plan_of(batch.trajectories)

    whole, recomputed = (
        gradients(start(spec, compute_dtype="float32", **options), batch, plan)[0]
        for options in ({"share_prompts": False}, {"gradient_checkpointing": True})
    )

    assert_alike(recomputed, whole)


@pytest.mark.slow
# Inductor itself uses what torch has deprecated.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_compiled_layers_share_trees_too(start, sgd_spec, models, monkeypatch):
    monkeypatch.setattr(
        "rlhf_torch.rows.packed_rows.branches_are_cheaper", lambda lengths, starts: True
    )
    batch = train_batch(random_trees(1))
    spec, plan = sgd_spec(models["qwen3"], max_tokens=90), plan_of(batch.trajectories)

    whole, compiled = (
        gradients(start(spec, compute_dtype="float32", **options), batch, plan)[0]
        for options in ({"share_prompts": False}, {"compile": True})
    )

    assert_alike(compiled, whole)


def test_a_critic_shares_trees_too(start, make_spec, refs, models, layout):
    batch = train_batch(random_trees(3))
    spec = make_spec(
        models["qwen3"],
        role="critic",
        head="value",
        objective=ValueObjective(aggregation="token-mean"),
        optimizer=refs.sgd,
        max_grad_norm=None,
    )
    found = []
    for share in (False, True):
        backend = start(spec, compute_dtype="float32", share_prompts=share)
        before = torch.from_numpy(backend.values(batch.trajectories))
        found.append((before, gradients(backend, batch, plan_of(batch.trajectories))[0]))

    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-5)


def test_a_reference_and_a_teacher_share_trees_too(start, make_spec, models, layout):
    trees = random_trees(4)
    spec = make_spec(models["qwen3"], objective=None, optimizer=None)
    found = []
    for share in (False, True):
        backend = start(spec, compute_dtype="float32", share_prompts=share)
        top = backend.top_tokens(trees, 3)
        assert (np.diff(top.logprobs) <= 0).all()
        found.append((backend.logprobs(trees), top.logprobs))

    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-5)


def test_a_token_trains_once_for_each_row_that_trains_it(start, sgd_spec, models):
    """Two equal rows with advantages a and b move the weights as one row with a + b does."""
    rng = np.random.default_rng(0)
    mask = np.arange(20) >= 6
    tokens = rng.integers(4, 100, 20)
    advantages = rng.normal(size=(2, 14)).astype(np.float32)
    moved = []
    for columns in (advantages, advantages.sum(0, keepdims=True)):
        rows = [row_of(Uid(0, 0, sample), tokens, mask) for sample in range(len(columns))]
        trajectories = TrajectoryColumns.from_trajectories(rows)
        batch = TrainBatch(trajectories=trajectories, columns={"advantages": columns.ravel()})
        totals = Normalizers(num_actions=28, num_sequences=2, max_actions=14)
        plan = StepPlan(normalizers=totals, on_policy=True)
        backend = start(sgd_spec(models["qwen3"]), compute_dtype="float32")
        moved.append(gradients(backend, batch, plan)[0])

    assert_alike(moved[0], moved[1])


def test_rows_may_ask_for_other_tokens_at_a_shared_action(start, make_spec, models):
    trees = random_trees(0)
    backend = start(make_spec(models["qwen3"]), compute_dtype="float32")
    asked = torch.arange(2 * int(trees.num_actions.sum())).view(-1, 2) % 90
    every = np.arange(len(trees))
    reader = backend._role.reader

    shared = reader.action_scores(pack_rows(trees, every, CPU, share_prompts=True), asked)
    whole = reader.action_scores(pack_rows(trees, every, CPU), asked)

    torch.testing.assert_close(shared.others, whole.others)
    torch.testing.assert_close(shared.logprobs, whole.logprobs)


@pytest.mark.parametrize("max_tokens", [30, 50, 90, 200])
def test_the_limit_of_a_micro_batch_counts_nodes(max_tokens):
    trees = random_trees(2, groups=6)

    cut = sharing_micro_batches(trees, max_tokens, share_prompts=True)

    assert sorted(np.concatenate(cut).tolist()) == list(range(len(trees)))
    sizes = [len(pack_rows(trees, rows, CPU, share_prompts=True).input_ids) for rows in cut]
    assert max(sizes) <= max_tokens
    apart = sharing_micro_batches(trees, max_tokens, share_prompts=False)
    assert len(cut) < len(apart)


def test_samples_of_a_prompt_go_by_whole_sequences(monkeypatch):
    """That they did so before is what keeps their numbers."""
    monkeypatch.setattr(prompt_sharing, "COST_OF_A_BRANCH", 0)
    mask = np.arange(20) >= 10
    rows = [
        row_of(Uid(0, 0, sample), [*range(5, 15), *[20 + sample] * 10], mask) for sample in range(4)
    ]
    star = TrajectoryColumns.from_trajectories(rows)
    tree = TrajectoryColumns.from_trajectories(
        [*rows, row_of(Uid(0, 0, 9), [*range(5, 15), *[20] * 4, *[30] * 6], mask)]
    )

    found = [
        type(pack_rows(one, np.arange(len(one)), CPU, share_prompts=True).layout)
        for one in (star, tree)
    ]

    assert found == [SharedLayout, BranchLayout]


def test_equal_steps_on_trees_are_equal_to_the_bit(start, make_spec, models, layout):
    batch = train_batch(random_trees(1))
    digests = []
    for _ in range(2):
        backend = start(make_spec(models["qwen3"]))
        backend.train_step(batch, plan_of(batch.trajectories, kl_coef=0.0))
        digests.append(backend.checksum())
    assert digests[0] == digests[1]
