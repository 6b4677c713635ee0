"""The reward ``reward_model`` against what Transformers computes, and what it refuses."""

import json

import pytest
from tests.plugins.reward_model.conftest import CLOSE
from tests.quantized_folders import pack, set_quantization, without_weights

from rlhf_core import ConfigError, RewardError
from rlhf_testing.checks import check_plugin
from rlhf_testing.conformance import run_checks, subject
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer, write_tiny_model


def rewards(results):
    return [result.reward for result in results]


def test_the_plugin_keeps_the_promises_of_every_plugin():
    check_plugin("rlhf_plugin_reward_model")


def test_the_contract_holds(plugins, reward_model):
    """One sequence a pass: then no rounding depends on the others either."""
    registered = plugins.get("rlhf_rewards", "reward_model")
    tried = subject(registered, path=str(reward_model), input="text", batch_tokens=1)

    outcomes = run_checks("rlhf_rewards", tried)

    assert len(outcomes) == 5
    assert [outcome for outcome in outcomes if outcome.failed] == []


def test_a_score_is_that_of_transformers(results, reward_model, plain, samples):
    found = rewards(results("reward_model", samples, path=str(reward_model)))

    expected = [plain(reward_model, one.token_ids) for one in samples]
    assert len({round(score, 3) for score in expected}) == len(expected)
    assert found == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_the_batch_does_not_change_a_score(results, reward_model, samples, batch_tokens):
    alone = [rewards(results("reward_model", [one], path=str(reward_model)))[0] for one in samples]

    together = rewards(
        results("reward_model", samples, path=str(reward_model), batch_tokens=batch_tokens)
    )

    assert together == pytest.approx(alone, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_other_families_are_scored_alike(
    results, make_reward_model, plain, samples, tmp_path, family
):
    folder = make_reward_model(tmp_path / "rm", family=family)

    found = rewards(results("reward_model", samples, path=str(folder)))

    assert found == pytest.approx([plain(folder, one.token_ids) for one in samples], **CLOSE)


def test_an_encoder_s_classifier_is_scored_by_its_own_rule(results, plain, samples, tmp_path):
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = tiny_tokenizer()
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(tokenizer),
        **shape,
        intermediate_size=32,
        num_labels=1,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    found = rewards(results("reward_model", samples, path=str(tmp_path)))

    assert found == pytest.approx([plain(tmp_path, one.token_ids) for one in samples], **CLOSE)


def test_half_precision_is_close_and_different(results, reward_model, samples):
    full = rewards(results("reward_model", samples, path=str(reward_model)))

    half = rewards(results("reward_model", samples, path=str(reward_model), dtype="bfloat16"))

    assert half != pytest.approx(full, abs=1e-5)
    assert half == pytest.approx(full, abs=0.1)


def rename_head(folder, name):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights[f"{name}.weight"] = weights.pop("score.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_head_of_another_name_is_found(results, make_reward_model, plain, samples, tmp_path):
    folder = make_reward_model(tmp_path / "rm")
    expected = [plain(folder, one.token_ids) for one in samples]
    rename_head(folder, "value_head")

    by_option = results("reward_model", samples, path=str(folder), head="value_head")
    with pytest.raises(
        ConfigError,
        match=r"score\.weight.*value_head\.weight",
        check=has_code("reward-model/no-head"),
    ):
        results("reward_model", samples, path=str(folder))
    config = json.loads((folder / "config.json").read_text())
    config["value_head_prefix"] = "value_head"
    (folder / "config.json").write_text(json.dumps(config))
    by_config = results("reward_model", samples, path=str(folder))

    assert rewards(by_option) == pytest.approx(expected, **CLOSE)
    assert rewards(by_config) == pytest.approx(expected, **CLOSE)


def test_where_padding_also_ends_sequences_the_rule_decides(
    results, make_reward_model, plain, sample, tmp_path
):
    """With the end token as padding token Transformers reads the token before it, OpenRLHF the end token."""
    folder = make_reward_model(tmp_path / "rm", pad_token_id=2)
    request = sample("6 * 7 = ", "42")
    before = sample("6 * 7 = ", "42", eos=False)

    not_pad, last = (
        rewards(results("reward_model", [request], path=str(folder), score_at=rule))[0]
        for rule in ("last_not_pad", "last")
    )

    assert not_pad == pytest.approx(plain(folder, request.token_ids), **CLOSE)
    assert not_pad == pytest.approx(plain(folder, before.token_ids), **CLOSE)
    assert abs(last - not_pad) > 1e-3


def test_normalization_is_that_of_the_model_or_as_given(
    results, make_reward_model, samples, tmp_path
):
    folder = make_reward_model(tmp_path / "rm", mean=0.5, std=2.0)
    raw = rewards(results("reward_model", samples, path=str(folder)))

    model = rewards(results("reward_model", samples, path=str(folder), normalize="model"))
    given = rewards(
        results("reward_model", samples, path=str(folder), normalize="given", mean=1.0, std=4.0)
    )

    assert model == pytest.approx([(score - 0.5) / 2.0 for score in raw], **CLOSE)
    assert given == pytest.approx([(score - 1.0) / 4.0 for score in raw], **CLOSE)


def test_normalization_that_the_model_does_not_have_is_refused(results, reward_model):
    with pytest.raises(
        ConfigError,
        match=r"config\.json has mean None",
        check=has_code("reward-model/mean-and-std"),
    ):
        results("reward_model", [], path=str(reward_model), normalize="model")


@pytest.mark.parametrize(
    "options", [{"normalize": "given", "mean": 1.0}, {"mean": 1.0, "std": 1.0}]
)
def test_a_mean_without_its_mode_is_refused(plugins, options):
    with pytest.raises(ValueError, match="normalize"):
        plugins.get("rlhf_rewards", "reward_model").validate({"path": "m", **options})


def test_text_is_scored_with_exactly_one_end_token(results, reward_model, plain, sample):
    plain_text = sample("6 * 7 = ", "42", eos=False)
    with_end = sample("<pad><pad>6 * 7 = ", "42<eos><eos>", eos=False)

    found = rewards(
        results("reward_model", [plain_text, with_end], path=str(reward_model), input="text")
    )

    expected = plain(reward_model, sample("6 * 7 = ", "42").token_ids)
    assert found == pytest.approx([expected, expected], **CLOSE)


IMAGE = {"type": "image", "media": {"sha256": "0" * 64}}


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": [{"type": "text", "text": "h"}, IMAGE, "i"]}],
    ],
    ids=["text", "messages", "without its image"],
)
def test_chat_is_scored_in_the_model_s_own_template(results, reward_model, plain, sample, messages):
    request = sample("policy's own format", "hello", row={"question": messages})

    found = results(
        "reward_model", [request], path=str(reward_model), input="chat", messages_key="question"
    )

    text = "user:hi\nassistant:hello<eos>\n"
    ids = tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert rewards(found) == pytest.approx([plain(reward_model, ids)], **CLOSE)


def test_a_chat_without_its_column_names_the_columns(results, reward_model, sample):
    (error,) = results(
        "reward_model",
        [sample("a", "b")],
        path=str(reward_model),
        input="chat",
        messages_key="messages",
    )

    assert isinstance(error, RewardError)
    assert "there are: prompt" in str(error)


def test_ids_of_another_tokenizer_are_refused(results, reward_model, sample):
    other = sample("6 * 7 = ", "42", token_ids=(50, 51, 52, 53))

    good, bad = results("reward_model", [sample("a", "b"), other], path=str(reward_model))

    assert isinstance(good.reward, float)
    assert isinstance(bad, RewardError)
    assert "have different tokenizers" in str(bad)


def test_a_truncated_response_can_have_a_reward_of_its_own(results, reward_model, plain, sample):
    cut = sample("6 * 7 = ", "4", eos=False)

    scored = rewards(results("reward_model", [cut], path=str(reward_model)))
    given = rewards(results("reward_model", [cut], path=str(reward_model), truncated_reward=-3.0))

    assert scored == pytest.approx([plain(reward_model, cut.token_ids)], **CLOSE)
    assert given == [-3.0]


def test_a_sequence_that_is_too_long_is_an_error_or_cut(results, reward_model, plain, sample):
    request = sample("6 * 7 = ", "42")
    ids = request.token_ids

    def scored(overlong):
        options = {"path": str(reward_model), "max_length": 5, "overlong": overlong}
        return results("reward_model", [request], **options)[0]

    assert "a sequence of 11 tokens; the reward model's max_length is 5" in str(scored("error"))
    assert scored("cut_start").reward == pytest.approx(plain(reward_model, ids[-5:]), **CLOSE)
    assert scored("cut_end").reward == pytest.approx(plain(reward_model, ids[:5]), **CLOSE)


def test_what_is_no_reward_model_is_refused_with_the_reason(
    results, make_reward_model, reward_model, tmp_path
):
    write_tiny_model(tmp_path / "lm", hidden_size=16, num_layers=1, num_heads=2)
    make_reward_model(tmp_path / "three", num_labels=3)
    (tmp_path / "empty").mkdir()
    make_reward_model(tmp_path / "run" / "model")
    make_reward_model(tmp_path / "old")
    (tmp_path / "old" / "model.safetensors").rename(tmp_path / "old" / "pytorch_model.bin")

    model = tmp_path / "run" / "model"
    for folder, reason, code in (
        ("run", f"the folder of a run, whose model is in {model}", "folder-of-a-run"),
        ("lm", "a language model without a trained head is no reward model", "no-head"),
        ("three", r"score.weight has the shape \(3, 16\); expected \(1, 16\)", "shape-of-head"),
        ("empty", "expected a Transformers folder", "not-loadable"),
        ("old", r"pytorch_model\.bin is a pickle", "not-loadable"),
        ("nowhere", "expected a Transformers folder", "not-loadable"),
    ):
        with pytest.raises(ConfigError, match=reason, check=has_code(f"reward-model/{code}")):
            results("reward_model", [], path=str(tmp_path / folder))
    with pytest.raises(ConfigError, match="0 GPUs", check=has_code("gpu/not-visible")):
        results("reward_model", [], path=str(reward_model), device="cuda:7")


def test_a_model_in_eight_bits_scores_with_the_weights_that_they_unpack_to(
    results, make_reward_model, plain, samples, tmp_path
):
    folder = pack(make_reward_model(tmp_path / "rm"), "fp8")

    found = rewards(results("reward_model", samples, path=str(folder)))

    # Transformers unpacks such a model where there is no GPU.
    assert found == pytest.approx([plain(folder, one.token_ids) for one in samples], **CLOSE)


def test_a_model_that_is_not_unpacked_is_refused_by_name(results, reward_model, samples, tmp_path):
    folder = without_weights(reward_model, tmp_path / "rm")
    set_quantization(folder, {"quant_method": "gptq"})

    with pytest.raises(ConfigError, match="gptq", check=has_code("model/quantized")):
        results("reward_model", samples, path=str(folder))
