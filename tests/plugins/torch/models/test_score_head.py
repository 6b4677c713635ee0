"""A model with a score head: what it reads, what its gradients are, and the folder that Transformers loads."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.torch.conftest import gradients
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import (
    Normalizers,
    RankingObjective,
    StepLabelObjective,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
    ValueObjective,
)
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES, tiny_tokenizer, write_tiny_model
from rlhf_torch.models.role_model import build_role_model
from rlhf_torch.models.score_head import padding_tokenizer

EOS = 2


def answer_of(uid, prompt, response, *, chosen=True, behind=()):
    """A row of a prompt and an answer, with what a chat template writes behind its end."""
    tokens = np.array([*prompt, *response, *behind], dtype=np.int32)
    start, end = len(prompt), len(prompt) + len(response)
    mask = np.zeros(len(tokens), dtype=bool)
    mask[start:end] = True
    return Trajectory(
        uid=uid,
        token_ids=tokens,
        action_mask=mask,
        rollout_logprobs=np.zeros(len(response), dtype=np.float32),
        weight_version=np.zeros(len(response), dtype=np.int32),
        turns=(Turn(start=start, end=end),),
        reward=float(chosen),
        rewards={"margin": 0.25},
    )


def pairs(num=4, seed=0, *, behind=()):
    """Pairs of one prompt each, whose answers differ in length."""
    rng = np.random.default_rng(seed)
    rows = []
    for pair in range(num):
        prompt = rng.integers(4, 100, rng.integers(9, 14))
        for sample in range(2):
            response = [*rng.integers(4, 100, rng.integers(2, 7)), EOS]
            uid = Uid(0, pair, sample)
            rows.append(answer_of(uid, prompt, response, chosen=sample == 0, behind=behind))
    return TrajectoryColumns.from_trajectories(rows)


@pytest.fixture
def scorer_spec(make_spec, refs):
    """A reward model whose update is its gradient."""

    def make(path, **changes):
        spec = make_spec(
            path,
            role="reward_model",
            head="score",
            objective=RankingObjective(),
            optimizer=refs.sgd,
            max_grad_norm=None,
            seed=5,
        )
        return replace(spec, **changes)

    return make


@pytest.fixture(scope="module")
def loud(tmp_path_factory):
    """Models of every family whose scores differ clearly."""
    root = tmp_path_factory.mktemp("loud")
    return {
        family: write_tiny_model(root / family, family, initializer_range=0.2)
        for family in FAMILIES
    }


def last_scores(backend, rows):
    return backend.values(rows)[rows.action_offsets[1:] - 1]


def plain_scores(path, head, rows):
    """Scores (B,) with gradients: one sequence at a time, up to its last action, without packing."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    weight = head.detach().clone().requires_grad_()
    scores = []
    for row in range(len(rows)):
        span = slice(rows.token_offsets[row], rows.token_offsets[row + 1])
        end = int(np.flatnonzero(rows.action_mask[span])[-1]) + 1
        tokens = torch.from_numpy(rows.tokens_of(row)[:end].astype(np.int64))
        hidden = model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state
        scores.append((hidden[0, -1] * weight[0]).sum())
    named = dict(model.named_parameters()) | {"score.weight": weight}
    return torch.stack(scores), named


@pytest.mark.parametrize("behind", [(), (99,)])
@pytest.mark.parametrize("share_prompts", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_score_is_that_of_a_plain_model_at_the_last_token_of_the_answer(
    start, scorer_spec, loud, family, share_prompts, behind
):
    backend = start(scorer_spec(loud[family]), share_prompts=share_prompts)
    rows = pairs(behind=behind)

    packed = last_scores(backend, rows)

    expected, _ = plain_scores(loud[family], backend._model.value_head.weight, rows)
    np.testing.assert_allclose(packed, expected.detach(), atol=1e-6)
    assert np.ptp(packed) > 0.01
    alone = [last_scores(backend, rows.select(np.array([row])))[0] for row in range(len(rows))]
    np.testing.assert_allclose(packed, alone, atol=1e-6)


@pytest.mark.parametrize("max_tokens", [16384, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_a_ranking_step_is_that_of_a_plain_model(
    start, scorer_spec, loud, family, max_tokens
):
    objective = RankingObjective(center_coef=0.1)
    spec = scorer_spec(loud[family], objective=objective, max_tokens_per_micro_batch=max_tokens)
    backend, rows = start(spec), pairs(behind=(99,))
    head = backend._model.value_head.weight.detach().clone()
    totals = Normalizers(num_actions=int(rows.num_actions.sum()), num_sequences=8, max_actions=9)

    actual, metrics = gradients(
        backend, TrainBatch(trajectories=rows, columns={}), StepPlan(normalizers=totals)
    )

    scores, named = plain_scores(loud[family], head, rows)
    chosen, rejected = scores[0::2], scores[1::2]
    ranking = -torch.nn.functional.logsigmoid(chosen - rejected - 0.25).mean()
    (ranking + 0.1 * (chosen + rejected).square().mean()).backward()
    expected = {name: weight.grad for name, weight in named.items()}
    assert metrics["loss/ranking"].value() == pytest.approx(ranking.item(), abs=1e-6)
    assert metrics["train/micro_batches"].value() == (1 if max_tokens > 40 else 4)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


def test_the_gradient_of_a_step_on_labels_is_that_of_a_plain_model(start, scorer_spec, loud):
    """Every action is the last token of a step; here all tokens of the answers are."""
    backend = start(scorer_spec(loud["qwen3"], objective=StepLabelObjective()))
    rows = pairs(1).select(np.array([0]))
    num = int(rows.num_actions.sum())
    labels = (np.arange(num) % 2).astype(np.float32)
    head = backend._model.value_head.weight.detach().clone()
    totals = Normalizers(num_actions=num, num_sequences=1, max_actions=9)
    batch = TrainBatch(trajectories=rows, columns={"labels": labels})

    actual, _ = gradients(backend, batch, StepPlan(normalizers=totals))

    model = AutoModelForCausalLM.from_pretrained(loud["qwen3"], dtype=torch.float32).eval()
    tokens = torch.from_numpy(rows.token_ids.astype(np.int64))
    hidden = model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
    weight = head.requires_grad_()
    scores = (hidden[torch.from_numpy(rows.action_mask)] * weight).sum(-1)
    torch.nn.functional.binary_cross_entropy_with_logits(
        scores, torch.from_numpy(labels)
    ).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    expected["score.weight"] = weight.grad
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("max_tokens", [16384, 40])
def test_a_step_returns_the_scores_that_its_loss_was_computed_with(
    start, scorer_spec, loud, max_tokens
):
    """Those before the update, in the order of the batch, over one micro-batch or four."""
    backend = start(scorer_spec(loud["qwen3"], max_tokens_per_micro_batch=max_tokens))
    rows = pairs()
    totals = Normalizers(num_actions=int(rows.num_actions.sum()), num_sequences=8, max_actions=9)
    plan, batch = StepPlan(normalizers=totals), TrainBatch(trajectories=rows, columns={})
    before = backend.values(rows)

    asked = backend.train_step(batch, replace(plan, return_values=True))
    silent = backend.train_step(batch, plan)

    np.testing.assert_allclose(asked.values, before, atol=1e-6)
    assert np.abs(backend.values(rows) - before).max() > 1e-3
    assert silent.values is None


def test_a_role_without_a_head_has_no_scores_to_return(start, make_spec, loud):
    backend, rows = start(make_spec(loud["qwen3"])), pairs(1)
    actions = int(rows.num_actions.sum())
    totals = Normalizers(num_actions=actions, num_sequences=2, max_actions=9)
    ones = {"advantages": np.ones(actions, dtype=np.float32)}

    outcome = backend.train_step(
        TrainBatch(trajectories=rows, columns=ones),
        StepPlan(normalizers=totals, on_policy=True, return_values=True),
    )

    assert outcome.values is None


def test_the_head_is_drawn_from_the_seed_of_the_role_alone(start, scorer_spec, loud):
    heads = []
    for seed in (5, 5, 6):
        torch.manual_seed(len(heads))
        backend = start(scorer_spec(loud["qwen3"], seed=seed))
        heads.append(backend._model.value_head.weight.detach().clone())

    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    # Standard deviation 1 / 33 of 32 draws: a quarter off would be 2 standard errors of it.
    assert 0.5 < float(heads[0].std() * 33) < 1.5
    assert heads[0].dtype == torch.float32


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_a_plain_sequence_classifier(start, scorer_spec, tmp_path, family, tied):
    source = write_tiny_model(tmp_path / "in", family, initializer_range=0.2, tied=tied)
    backend, rows = start(scorer_spec(source)), pairs()

    backend.export(tmp_path / "out")

    plain, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert plain.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.pad_token_id == plain.config.get_text_config().pad_token_id == 0
    padded = tokenizer.pad(
        {"input_ids": [rows.tokens_of(row).tolist() for row in range(len(rows))]},
        return_tensors="pt",
    )
    with torch.no_grad():
        scores = plain.eval()(**padded).logits[:, 0]
    np.testing.assert_allclose(last_scores(backend, rows), scores, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_a_reward_model_goes_on_from_its_exported_folder(start, scorer_spec, tmp_path, tied):
    """Its folder has no output head, which nothing reads."""
    source = write_tiny_model(tmp_path / "in", initializer_range=0.2, tied=tied)
    first, rows = start(scorer_spec(source)), pairs()
    first.export(tmp_path / "out")

    second = start(scorer_spec(tmp_path / "out", seed=77))
    second.export(tmp_path / "again")

    np.testing.assert_array_equal(second.values(rows), first.values(rows))
    for name in ("model.safetensors", "config.json"):
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("out", "again"))
        assert one == other


def test_a_head_of_another_name_is_found_by_the_configuration(start, scorer_spec, tmp_path):
    """OpenRLHF's reward models name their head in ``value_head_prefix``."""
    from safetensors.torch import load_file, save_file

    source = write_tiny_model(tmp_path / "in", initializer_range=0.2)
    first, rows = start(scorer_spec(source)), pairs()
    first.export(tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    weights["value_head.weight"] = weights.pop("score.weight")
    save_file(weights, tmp_path / "out" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["value_head_prefix"] = "value_head"
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))

    second = start(scorer_spec(tmp_path / "out", seed=77))

    np.testing.assert_array_equal(second.values(rows), first.values(rows))


@pytest.mark.parametrize(
    ("objective", "bases"), [(ValueObjective(), None), (ValueObjective(), []), (None, [])]
)
def test_a_critic_begins_from_a_reward_model_with_tied_embeddings(
    start, scorer_spec, make_spec, plugins, tmp_path, objective, bases
):
    """A model that writes is not read from such a folder; a value head writes nothing."""
    source = write_tiny_model(tmp_path / "in", tied=True)
    start(scorer_spec(source)).export(tmp_path / "out")
    critic = make_spec(tmp_path / "out", role="critic", head="value", objective=objective)
    reference = make_spec(tmp_path / "out", role="reference", head="lm", objective=None)
    options = TorchBackendConfig(device="cpu")

    role = build_role_model(critic, options, plugins, bases)

    assert role.value_head is not None
    with pytest.raises(ConfigError, check=has_code("model/is-a-reward-model")):
        build_role_model(reference, options, plugins, bases)


def test_a_tokenizer_that_ends_and_pads_with_one_token_gets_another_for_padding(
    start, scorer_spec, tmp_path
):
    """Else Transformers would read the score before the last token."""
    source = write_tiny_model(tmp_path / "in", initializer_range=0.2)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(source)
    backend, rows = start(scorer_spec(source)), pairs()

    backend.export(tmp_path / "out")

    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert plain.config.pad_token_id not in (None, EOS)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").pad_token_id == plain.config.pad_token_id
    with torch.no_grad():
        scores = [
            plain(input_ids=torch.tensor([rows.tokens_of(row).tolist()])).logits.item()
            for row in range(len(rows))
        ]
    np.testing.assert_allclose(last_scores(backend, rows), scores, atol=1e-6)


def test_no_token_that_the_model_may_end_with_is_for_padding(tmp_path):
    source = write_tiny_model(tmp_path / "in")
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2, 3]}))

    tokenizer = padding_tokenizer(str(source), str(source), trust_remote_code=False)

    assert tokenizer.pad_token_id == 1


def test_a_family_without_a_classifier_is_refused_before_training(start, scorer_spec, tmp_path):
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=0,
    )
    CohereForCausalLM(config).save_pretrained(tmp_path)

    with pytest.raises(
        PluginError, match="CohereForCausalLM", check=has_code("model/no-classifier")
    ):
        start(scorer_spec(tmp_path))


def test_a_score_head_and_its_objective_come_together(start, scorer_spec, make_spec, loud):
    with pytest.raises(ConfigError, match=r"policy.*lm", check=has_code("plugin/wrong-head")):
        start(make_spec(loud["qwen3"], objective=RankingObjective()))
    with pytest.raises(
        ConfigError, match=r"reward_model.*score", check=has_code("plugin/wrong-head")
    ):
        start(scorer_spec(loud["qwen3"], objective=make_spec(loud["qwen3"]).objective))


def test_a_state_is_restored_to_the_bit(start, scorer_spec, loud, tmp_path):
    rows = pairs()
    batch = TrainBatch(trajectories=rows, columns={})
    totals = Normalizers(num_actions=int(rows.num_actions.sum()), num_sequences=8, max_actions=9)
    first = start(scorer_spec(loud["qwen3"]))
    first.train_step(batch, StepPlan(normalizers=totals))
    first.save(tmp_path)

    second = start(scorer_spec(loud["qwen3"], seed=6))
    second.load(tmp_path)

    np.testing.assert_array_equal(second.values(rows), first.values(rows))
