"""Ids that a role's model has no row for, rows that no token has, and rows that a tokenizer's tokens lack."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import TopTokens, Vocabulary
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.packed.packing import PackedLayout

KNOWN = Vocabulary(size=90, holes=(7,))


def with_ids(batch, wrong):
    """The batch with another id at the last place of its first sequence."""
    trajectories = batch.trajectories
    tokens = trajectories.tokens.read()
    ids = tokens.token_ids.copy()
    ids[trajectories.num_tokens[0] - 1] = wrong
    return replace(batch, trajectories=replace(trajectories, tokens=replace(tokens, token_ids=ids)))


@pytest.mark.parametrize("wrong", [100, 5000, -1])
def test_ids_outside_of_the_vocabulary_are_refused_by_name(
    start, make_spec, make_batch, make_plan, models, wrong
):
    backend = start(make_spec(models["qwen3"]))
    batch = with_ids(make_batch(), wrong)
    asked = [
        lambda: backend.logprobs(batch.trajectories),
        lambda: backend.top_tokens(batch.trajectories, 3),
        lambda: backend.train_step(batch, make_plan(batch)),
    ]

    for ask in asked:
        with pytest.raises(
            PluginError, match=f"token id {wrong} .*policy", check=has_code("rollout/unknown-token")
        ):
            ask()


def test_ids_that_a_teacher_named_are_checked_too(start, make_spec, make_batch, make_plan, models):
    backend = start(make_spec(models["qwen3"]))
    batch = make_batch()
    count = int(batch.trajectories.num_actions.sum())
    top = TopTokens(
        token_ids=np.full((count, 2), 151_937, dtype=np.int32),
        logprobs=np.zeros((count, 2), dtype=np.float32),
    )

    with pytest.raises(PluginError, match="151937", check=has_code("rollout/unknown-token")):
        backend.train_step(replace(batch, teacher_top=top), make_plan(batch))


def test_log_probs_entropies_and_top_tokens_know_nothing_of_padding(
    start, make_spec, make_trajectories, models
):
    """Ids of a run go up to 89 but for 7; the rows behind them, and that one, have no probability."""
    backend = start(make_spec(models["qwen3"], vocabulary=KNOWN, temperature=0.7))
    plain = AutoModelForCausalLM.from_pretrained(models["qwen3"], dtype=torch.float32).eval()
    batch = make_trajectories(4)
    unused = list(KNOWN.unused(plain.config.vocab_size))
    logprobs, entropies = [], []
    for row in range(len(batch)):
        ids = torch.tensor(batch.tokens_of(row)).long()
        mask = batch.action_mask[batch.token_offsets[row] : batch.token_offsets[row + 1]]
        actions = torch.tensor(np.flatnonzero(mask))
        with torch.no_grad():
            logits = plain(input_ids=ids[None]).logits[0] / 0.7
        logits[:, unused] = -torch.inf
        each = logits.log_softmax(-1)[actions - 1]
        logprobs.append(each.gather(1, ids[actions][:, None])[:, 0])
        entropies.append(-(each.exp() * each.clamp(min=-1e9)).sum(-1))
    expected = torch.cat(logprobs).numpy()
    is_known = ~np.isin(batch.token_ids[batch.action_mask], unused)

    found = backend.statistics(batch, ["logprobs", "entropy"])
    top = backend.top_tokens(batch, 89)

    assert is_known.any()
    np.testing.assert_allclose(found["logprobs"][is_known], expected[is_known], atol=1e-4)
    np.testing.assert_allclose(found["entropy"], torch.cat(entropies).numpy(), atol=1e-4)
    assert not np.isin(top.token_ids, unused).any()
    with pytest.raises(
        ConfigError, match="89 tokens; 90", check=has_code("model/small-vocabulary")
    ):
        backend.top_tokens(batch, 90)


def test_rows_without_a_probability_get_no_gradient(
    start, make_spec, make_batch, make_plan, refs, tmp_path
):
    folder = write_tiny_model(tmp_path / "untied", tied=False)
    backend = start(make_spec(folder, vocabulary=KNOWN, optimizer=refs.sgd))
    batch = make_batch()
    ids = batch.trajectories.token_ids
    unused = torch.tensor(sorted(set(KNOWN.unused(100)) - set(ids.tolist())))
    head = backend._model.lm.model.get_output_embeddings().weight
    before = head.detach().clone()

    backend.train_step(batch, make_plan(batch))

    torch.testing.assert_close(head.detach()[unused], before[unused], atol=0, rtol=0)
    assert not torch.equal(head.detach(), before)


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_the_mean_of_the_old_and_are_exported(start, make_spec, tmp_path, tied):
    folder = write_tiny_model(tmp_path / "model", tied=tied)
    state = torch.get_rng_state()
    backend = start(make_spec(folder, embedding_rows=105))
    assert torch.equal(torch.get_rng_state(), state)

    backend.export(tmp_path / "out")

    old = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    new = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert new.config.vocab_size == 105
    for name in ("get_input_embeddings", "get_output_embeddings"):
        before, after = getattr(old, name)().weight, getattr(new, name)().weight
        torch.testing.assert_close(after[:100], before, atol=0, rtol=0)
        torch.testing.assert_close(after[100:], before.mean(0).expand(5, -1))
    tokens = torch.arange(4, 16)
    lm = load_causal_lm(str(folder), dtype="float32", rows=50)
    assert lm.vocab_size == 100
    layout = PackedLayout([0, 12], lm.device)
    with torch.no_grad():
        ours = lm.logits(lm.hidden(tokens, layout.positions(), layout))
        torch.testing.assert_close(
            ours, old(input_ids=tokens[None]).logits[0], atol=1e-5, rtol=1e-5
        )
