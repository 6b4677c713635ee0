import json

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_plan.model.shapes import read_shape, shape_of
from rlhf_testing.errors import has_code


def test_parameter_counts_are_the_published_ones(published):
    counted = {
        name: shape_of(entry["config"], name).parameters for name, entry in published.items()
    }

    assert counted == {name: entry["parameters"] for name, entry in published.items()}


def test_the_parts_of_a_known_shape_are_those_computed_by_hand(shape):
    """24 (896 (2 896 + 2 128) + 3 896 4864) and 151936 896."""
    small = shape("qwen2.5-0.5b")

    assert small.layer_weights == 357_826_560
    assert small.head_weights == 136_134_656


def test_every_number_of_a_pencil_sized_model(pencil):
    # Attention: q, k, v, o of 2 x 2; feed-forward: three of 2 x 3.
    assert pencil.layer_weights == 4 * 4 + 3 * 6 == 34
    assert pencil.layer_parameters == 34 + 2 * 2  # and two norms
    assert pencil.parameters == 38 + 2 + 5 * 2  # the last norm, and a table that is the head too


def test_an_untied_head_is_one_more_table(pencil):
    import dataclasses

    assert dataclasses.replace(pencil, tied=False).parameters == pencil.parameters + 10


def test_counts_are_those_of_transformers(published):
    """Biases, query and key norms and ties as the library builds them, on a small variant of each family."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 64,
    }
    for family, extra in (
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"head_dim": 16}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 16, "attention_bias": True}),
    ):
        config = AutoConfig.for_model(family, **small, **extra)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        expected = sum(parameter.numel() for parameter in model.parameters())
        assert (
            shape_of(json.loads(config.to_json_string(use_diff=False)), family).parameters
            == expected
        )


@pytest.mark.parametrize(
    ("changes", "message", "code"),
    [
        ({"model_type": "phimoe"}, "model_type 'phimoe' is not modeled", "plan/unknown-model"),
        ({"model_type": None}, "is not modeled", "plan/unknown-model"),
        ({"hidden_size": 0}, "hidden_size is 0; expected a positive integer", "plan/not-positive"),
        ({"vocab_size": "many"}, "vocab_size is 'many'", "plan/not-positive"),
        ({"num_key_value_heads": 3}, "14 attention heads cannot share 3", "plan/unequal-heads"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(config_file, changes, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        read_shape(config_file("qwen2.5-0.5b", **changes))


def test_a_folder_is_read_by_its_config(config_file, tmp_path, shape):
    config_file("qwen2.5-0.5b").rename(tmp_path / "config.json")

    assert read_shape(tmp_path) == shape("qwen2.5-0.5b")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(
        ConfigError, match=r"config\.json", check=has_code("config/unreadable-file")
    ):
        read_shape(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere", check=has_code("config/unreadable-file")):
        read_shape(tmp_path / "nowhere")
