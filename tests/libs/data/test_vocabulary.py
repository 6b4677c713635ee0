"""Tokens of a run beside the rows and the tokenizers of its models."""

import json
import shutil

import pytest

from rlhf_core.batch.vocabulary import Vocabulary
from rlhf_core.errors import ConfigError
from rlhf_data import TokenizerRenderer
from rlhf_data.tokenizer import load_tokenizer
from rlhf_data.vocabulary import (
    check_rows,
    check_same_tokens,
    common_rows,
    model_rows,
    note_other_template,
    token_difference,
    vocabulary_of,
)
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import ALPHABET, tiny_tokenizer, write_tiny_model


@pytest.fixture
def model(tmp_path):
    return write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)


def with_rows(model, rows):
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": rows}))


def test_ids_of_a_vocabulary_are_those_that_have_a_token():
    tokenizer = tiny_tokenizer("ab")

    assert vocabulary_of(tokenizer) == Vocabulary(size=6)  # <pad> <bos> <eos> <unk> a b
    assert Vocabulary(size=6).unused(8) == (6, 7)
    assert Vocabulary(size=6, holes=(2, 4)).unused(9) == (2, 4, 6, 7, 8)
    assert Vocabulary(size=6, holes=(2, 4)).unused(4) == (2,)
    assert Vocabulary(size=6).unused(6) == ()


def test_a_model_with_fewer_rows_than_tokens_is_refused_with_both_numbers(model):
    tokenizer = load_tokenizer(str(model))
    rows = len(tokenizer)
    tokenizer.add_tokens(["<new>"])

    check_rows(tokenizer, str(model), "--model", resize=True)
    with pytest.raises(
        ConfigError,
        match=rf"--model .* {rows} rows.* {rows + 1} tokens.*'<new>' \({rows}\).*--model\.resize_embeddings",
        check=has_code("model/embeddings-too-small"),
    ):
        check_rows(tokenizer, str(model), "--model", resize=False)
    with pytest.raises(
        ConfigError,
        match=r"without --actor\.adapter first",
        check=has_code("model/embeddings-too-small"),
    ):
        check_rows(tokenizer, str(model), "--model", resize=True, has_adapter=True)
    with pytest.raises(
        ConfigError,
        match=r"train it with --model\.resize_embeddings first",
        check=has_code("model/embeddings-too-small"),
    ):
        check_rows(tokenizer, str(model), "--model", resize=None)


def test_a_model_with_more_rows_is_fine_and_one_without_a_configuration_is_for_its_loader(model):
    tokenizer = load_tokenizer(str(model))
    with_rows(model, 512)

    assert model_rows(str(model)) == 512
    check_rows(tokenizer, str(model), "--model", resize=False)
    (model / "config.json").unlink()
    assert model_rows(str(model)) is None
    check_rows(tokenizer, str(model), "--model", resize=False)


def test_a_tokenizer_with_other_ids_for_the_same_tokens_is_refused(model, tmp_path):
    tiny_tokenizer(ALPHABET[::-1]).save_pretrained(tmp_path / "other")

    with pytest.raises(
        ConfigError,
        match=r"--ref\.path .*' ' is 4 .* 99",
        check=has_code("model/other-tokenizer"),
    ):
        check_same_tokens(load_tokenizer(str(model)), str(tmp_path / "other"), "--ref.path")


def test_a_tokenizer_with_other_tokens_at_the_same_ids_is_refused():
    difference = token_difference(tiny_tokenizer("abc"), tiny_tokenizer("abd"))

    assert difference == "6 is 'c' in the run, and 'd' there"


def test_further_and_renamed_added_tokens_are_no_difference():
    """Qwen 3 has tokens that Qwen 2.5 lacks, and Llama 3.1 gave names to reserved tokens of Llama 3."""
    own, other = tiny_tokenizer(), tiny_tokenizer()
    own.add_special_tokens({"additional_special_tokens": ["<|reserved_0|>", "<think>"]})
    other.add_special_tokens({"additional_special_tokens": ["<|finetune|>"]})

    assert token_difference(own, other) is None
    assert token_difference(other, own) is None


def test_a_folder_without_a_tokenizer_is_not_compared(model, tmp_path):
    (tmp_path / "empty").mkdir()

    check_same_tokens(load_tokenizer(str(model)), str(tmp_path / "empty"), "--ref.path")


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def with_template(folder, template):
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = template
    (folder / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(folder)
    return TokenizerRenderer(tokenizer)


@pytest.mark.parametrize(
    ("other", "is_noted"),
    [
        (PLAIN, False),
        ("{# the same text #}" + PLAIN, False),
        (PLAIN.replace("assistant", "model"), True),
        (None, False),
        ("{{ raise_exception('no') }}", False),
    ],
)
def test_a_model_that_reads_another_rendering_than_its_own_is_noted(
    model, tmp_path, other, is_noted
):
    teacher = shutil.copytree(model, tmp_path / "teacher")
    with_template(teacher, other)

    note = note_other_template(
        with_template(model, PLAIN), str(teacher), "--teacher.path", "Set X."
    )

    assert (note is not None) == is_noted
    if note:
        assert note.startswith(f"--teacher.path {teacher}: it reads conversations as the run's")
        assert note.endswith("than it was trained on. Set X.")


def test_a_model_without_a_tokenizer_is_not_noted(model, tmp_path):
    (tmp_path / "empty").mkdir()
    renderer = with_template(model, PLAIN)

    assert note_other_template(renderer, str(tmp_path / "empty"), "--ref.path", "") is None


def test_where_padding_is_sampled_all_models_have_the_ids(model, tmp_path):
    large = write_tiny_model(tmp_path / "large", hidden_size=16, num_layers=1, num_heads=2)
    with_rows(model, 120)
    with_rows(large, 128)
    own = Vocabulary(size=100)
    paths = [str(large), str(model)]

    assert common_rows(own, paths, resize=False) == Vocabulary(size=120)
    assert common_rows(Vocabulary(size=124), paths, resize=True) == Vocabulary(size=124)
