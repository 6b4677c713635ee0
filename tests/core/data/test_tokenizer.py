"""Loading tokenizers, and finding every token that ends a turn."""

import json

import pytest

from rlhf_core.data.tokenizer import eos_token_ids, load_tokenizer
from rlhf_core.errors import ConfigError
from rlhf_core.testing.tiny import write_tiny_model

EOS = 2


@pytest.fixture
def model(tmp_path):
    return write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)


def edit_json(path, **changes):
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def test_a_folder_with_a_tokenizer_is_loaded(model):
    assert load_tokenizer(str(model)).eos_token_id == EOS


@pytest.mark.parametrize(("listed", "expected"), [(5, (2, 5)), ([7, 5], (2, 5, 7)), (None, (2,))])
def test_the_generation_configs_end_tokens_count_too(model, listed, expected):
    edit_json(model / "generation_config.json", eos_token_id=listed)

    assert eos_token_ids(load_tokenizer(str(model)), str(model)) == expected


def test_without_a_generation_config_the_models_own_counts(model):
    (model / "generation_config.json").unlink()
    edit_json(model / "config.json", eos_token_id=[2, 9])

    assert eos_token_ids(load_tokenizer(str(model)), str(model)) == (2, 9)


def test_a_model_that_could_never_stop_is_refused(model):
    tokenizer = load_tokenizer(str(model))
    tokenizer.eos_token = None
    edit_json(model / "generation_config.json", eos_token_id=None)

    with pytest.raises(ConfigError, match="names an end-of-sequence token"):
        eos_token_ids(tokenizer, str(model))


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))

    with pytest.raises(
        ConfigError, match=r"no ordinary tokens|with a tokenizer; loading it failed"
    ):
        load_tokenizer(str(tmp_path))


def test_code_that_comes_with_a_tokenizer_does_not_run(model):
    edit_json(
        model / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["mine.Mine", None]},
        tokenizer_class="Mine",
    )
    (model / "mine.py").write_text("raise SystemExit('this must not run')\n")

    load_tokenizer(str(model))  # the plain tokenizer.json serves

    (model / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="model"):
        load_tokenizer(str(model))
