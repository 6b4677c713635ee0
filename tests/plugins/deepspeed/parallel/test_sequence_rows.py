"""How a pass is cut into slices of tokens: nothing is lost, whatever the lengths."""

import numpy as np
import pytest
import torch

from rlhf_core import ConfigError
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_deepspeed.parallel.rank_group import RankGroup, join_group
from rlhf_plugin_deepspeed.parallel.sequence_attention import check_heads, check_layers
from rlhf_plugin_deepspeed.parallel.sequence_rows import lay_out
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.ranks.passes import agreed_passes
from rlhf_torch.ranks.ranks import Ranks
from rlhf_torch.rows.prompt_sharing import shared_starts

CPU = torch.device("cpu")


def slices(rows, size, batch):
    groups = [RankGroup(size, rank, CPU, None) for rank in range(size)]
    return [lay_out(batch, np.asarray(rows, dtype=np.int64), group, CPU) for group in groups]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [[0], [0, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_slices_together_are_the_rows(size, rows, material):
    batch = material.make_trajectories()
    part = batch.select(np.asarray(rows))

    parts = slices(rows, size, batch)

    tokens = torch.cat([one.packed.input_ids for one in parts])
    assert tokens[: len(part.token_ids)].tolist() == part.token_ids.tolist()
    assert {len(one.packed.input_ids) for one in parts} == {-(-len(part.token_ids) // size)}
    assert all(one.counts == parts[0].counts for one in parts)
    assert sum(parts[0].counts) == int(part.num_actions.sum())
    targets, predictors = [], []
    for rank, one in enumerate(parts):
        count = one.counts[rank]
        targets += one.packed.targets[:count].tolist()
        begin = rank * len(one.packed.input_ids)
        predictors += (one.packed.predictors[:count] + begin).tolist()
    (actions,) = part.action_mask.nonzero()
    lengths = torch.cat([one.packed.layout.sequence_lengths(9) for one in parts]).tolist()
    assert lengths[: len(part.token_ids)] == [
        max(9, length) for length in part.num_tokens for _ in range(length)
    ]
    assert len(lengths) == len(tokens)
    assert targets == part.token_ids[actions].tolist()
    assert predictors == (actions - 1).tolist()


def test_a_rank_with_whole_rows_has_prompts_once_and_one_with_slices_has_them_all(material):
    """Two groups of three rows."""
    batch = material.make_trajectories(samples=3)
    starts, rows = shared_starts(batch).lengths, np.arange(6)

    alone, sliced = (
        lay_out(batch, rows, RankGroup(size, 0, CPU, None), CPU, share_prompts=True)
        for size in (1, 2)
    )

    assert len(alone.packed.input_ids) == len(batch.token_ids) - starts.sum()
    assert np.flatnonzero(starts).tolist() == [1, 2, 4, 5]
    assert len(sliced.packed.input_ids) == -(-len(batch.token_ids) // 2)


def test_rows_with_the_same_prompt_stay_together_in_a_pass(material):
    batch = material.make_trajectories(9, samples=3)

    apart, together = (
        agreed_passes(batch, 60, Ranks(0, 1, CPU), together=False, share_prompts=shares)
        for shares in (False, True)
    )

    assert np.concatenate(together).tolist() == list(range(9))
    assert np.concatenate(apart).tolist() != list(range(9))


def test_a_rank_without_actions_still_has_one_to_go_through_the_head(material):
    """With more ranks than the row has tokens some have only padding."""
    batch = material.make_trajectories(1)

    parts = slices([0], 50, batch)

    empty = [one for rank, one in enumerate(parts) if one.counts[rank] == 0]
    assert empty
    assert {len(one.packed.targets) for one in empty} == {1}
    column = torch.arange(sum(parts[0].counts))
    assert [one.own(column).tolist() for one in empty] == [[0]] * len(empty)


def test_a_group_that_does_not_divide_the_ranks_is_refused():
    with pytest.raises(
        ConfigError, match="sequence_parallel 3 with 8 ranks", check=has_code("ranks/uneven")
    ):
        join_group(Ranks(0, 8, CPU), 3, "sequence_parallel")


def test_heads_that_cannot_be_dealt_out_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"sequence_parallel 4.*6 attention.*1, 2, 3, 6",
        check=has_code("deepspeed/heads-not-divisible"),
    ):
        check_heads(6, 4)
    with pytest.raises(
        ConfigError, match=r"one of 1\.$", check=has_code("deepspeed/heads-not-divisible")
    ):
        check_heads(1, 2)


def test_layers_that_carry_a_state_are_refused(tmp_path):
    folder = write_tiny_model(tmp_path, "qwen3_5")
    lm = load_causal_lm(str(folder), dtype="float32")

    check_layers(lm, 1)
    with pytest.raises(
        ConfigError,
        match="sequence_parallel 2 with Qwen3_5ForCausalLM",
        check=has_code("deepspeed/layers-with-state"),
    ):
        check_layers(lm, 2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tensor_parallel": 2, "zero_stage": 3}, "only stages 1 and 2 can share matrices"),
        ({"tensor_parallel": 2, "zero_stage": 0}, "only stages 1 and 2 can share matrices"),
        ({"tensor_parallel": 2, "sequence_parallel": 2}, "Set one of the two options to 1"),
        ({"leaf_modules": ("Block",)}, "leaf_modules with zero_stage 2"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        DeepSpeedConfig(**options)
