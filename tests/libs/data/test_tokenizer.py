"""Loading tokenizers, and finding every token that ends a turn."""

import json

import pytest
from tests.libs.data.chat.template.shipped import ENDS, source_of, tokenizer_with
from tests.released_templates import RELEASED, released_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend
from tokenizers.processors import TemplateProcessing

from rlhf_core.errors import ConfigError
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.tokenizer import (
    describe_ends,
    end_of_turn,
    eos_token_ids,
    load_tokenizer,
    read_template,
    save_tokenizer,
)
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

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
    tokenizer.eos_token = tokenizer.chat_template = None
    edit_json(model / "generation_config.json", eos_token_id=None)

    with pytest.raises(ConfigError, check=has_code("tokenizer/no-end-token")):
        eos_token_ids(tokenizer, str(model))


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def base_with_chatml(model):
    """The tokenizer of a base model that has a chat template, as Qwen2.5's does."""
    tokenizer = load_tokenizer(str(model))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer, tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_a_chat_template_s_end_of_turn_ends_a_turn_beside_the_end_of_texts(model):
    tokenizer, end = base_with_chatml(model)

    ends = eos_token_ids(tokenizer, str(model))

    assert ends == (EOS, end)
    assert end_of_turn(tokenizer) == end
    assert describe_ends(tokenizer, ends) == (
        f"a turn ends at '<eos>' (2, the tokenizer's) or '<|im_end|>' ({end}, the chat template's)"
    )


@pytest.mark.parametrize(
    "template",
    [None, "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ raise_exception('no') }}"],
    ids=["none", "without an end", "refusing"],
)
def test_a_template_without_an_end_of_turn_adds_none(model, template):
    tokenizer = load_tokenizer(str(model))
    tokenizer.chat_template = template

    assert end_of_turn(tokenizer) is None
    assert eos_token_ids(tokenizer, str(model)) == (EOS,)


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_released_templates_end_turns_with_their_own_token(name):
    tokenizer = released_tokenizer(name)

    assert tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer)) == RELEASED[name].end


ENDS_OF_CALLS = {
    "gemma4_v5": "<|tool_response>",
    "glm4moe": "<|observation|>",
    "gptoss": "<|call|>",
}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_the_token_behind_calls_ends_a_turn_too(model, name):
    """Else a model that learned to call tools goes on, and makes up the result."""
    tokenizer = tokenizer_with(source_of(name), ENDS[name])

    ends = tokenizer.convert_ids_to_tokens(eos_token_ids(tokenizer, str(model)))

    called = ENDS_OF_CALLS.get(name, ENDS[name])
    model_s_own = tokenizer.convert_ids_to_tokens(EOS)
    assert {*ends} == {model_s_own, ENDS[name], called}
    renderer = TokenizerRenderer(tokenizer)
    assert tokenizer.convert_ids_to_tokens(renderer.end_of_calls) == (
        [called] if name in ENDS_OF_CALLS else []
    )


def test_the_mark_behind_a_call_is_part_of_it():
    """Generation would end at the first of several calls."""
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}<|tool_call>"
        "{{ c.function | tojson }}<tool_call|>{% endfor %}{% if not m.tool_calls %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer = tokenizer_with(source, "<|end|>")

    assert TokenizerRenderer(tokenizer).end_of_calls == []


NOT_TOKENS = ["abc", ["x"], [1, "2"], -5, 1.5, {"a": 1}, True, [[1]]]


@pytest.mark.parametrize("listed", NOT_TOKENS, ids=str)
def test_end_tokens_that_are_none_are_refused(model, listed):
    edit_json(model / "generation_config.json", eos_token_id=listed)
    tokenizer = load_tokenizer(str(model))

    with pytest.raises(
        ConfigError,
        match=r"generation_config\.json has the eos_token_id",
        check=has_code("tokenizer/malformed-end-token"),
    ):
        eos_token_ids(tokenizer, str(model))


@pytest.mark.parametrize(
    ("listed", "code"),
    [
        ("abc", "tokenizer/unreadable"),
        ([1, "2"], "tokenizer/unreadable"),
        (-5, "tokenizer/malformed-end-token"),
    ],
    ids=str,
)
def test_end_tokens_of_the_models_own_configuration_are_checked_too(model, listed, code):
    tokenizer = load_tokenizer(str(model))
    (model / "generation_config.json").unlink()
    edit_json(model / "config.json", eos_token_id=listed)

    with pytest.raises(ConfigError, match="eos_token_id", check=has_code(code)):
        eos_token_ids(tokenizer, str(model))


DEEP = 100_000 * '{"a":' + "1" + 100_000 * "}"


@pytest.mark.parametrize("content", [DEEP, "[1]", "{"], ids=["deep", "a list", "broken"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_that_no_tokenizer_has_are_refused(model, name, content):
    (model / name).write_text(content)

    with pytest.raises(ConfigError, check=has_code("tokenizer/unreadable")):
        load_tokenizer(str(model))


@pytest.mark.parametrize("content", [DEEP, "[1]", "{"], ids=["deep", "a list", "broken"])
def test_a_damaged_generation_config_is_not_passed_over(model, content):
    tokenizer = load_tokenizer(str(model))
    (model / "generation_config.json").write_text(content)

    with pytest.raises(
        ConfigError, match=r"generation_config\.json", check=has_code("model/unreadable-config")
    ):
        eos_token_ids(tokenizer, str(model))


@pytest.mark.parametrize(
    ("kind", "code"), [("qwen3", "tokenizer/no-ordinary-tokens"), ("llama", "tokenizer/unreadable")]
)
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, kind, code):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))

    with pytest.raises(
        ConfigError,
        match=r"no ordinary tokens|with a tokenizer; loading it failed",
        check=has_code(code),
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
    with pytest.raises(ConfigError, match="model", check=has_code("tokenizer/unreadable")):
        load_tokenizer(str(model))


def test_a_tokenizer_that_no_option_names_is_said_to_be_copied_there(model):
    """Of a teacher, or for ``rlhf template check``, another folder with ``--model.tokenizer`` would change nothing."""
    for file in model.iterdir():
        if file.name != "config.json":
            file.unlink()

    with pytest.raises(
        ConfigError, match=r"--model\.tokenizer$", check=has_code("tokenizer/no-ordinary-tokens")
    ):
        load_tokenizer(str(model))
    with pytest.raises(
        ConfigError,
        match=r"Copy the tokenizer's files there$",
        check=has_code("tokenizer/no-ordinary-tokens"),
    ):
        load_tokenizer(str(model), has_option=False)


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["other-encoding", "no-file"])
def test_a_file_with_a_template_that_cannot_be_read_is_named_with_its_option(tmp_path, content):
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(
        ConfigError,
        match=r"^--teacher\.chat_template .*mine\.jinja: ",
        check=has_code("template/unreadable"),
    ):
        read_template(str(file), "--teacher.chat_template")


def test_a_file_with_a_template_is_read_as_it_is(tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages }}é\n", encoding="utf-8")

    assert read_template(str(tmp_path / "mine.jinja"), "FILE") == "{{ messages }}é\n"


def llama_tokenizer(folder, template, **settings):
    """Write a tokenizer of Llama whose file puts these tokens around texts, and its settings."""
    words = ["<unk>", "<s>", "</s>", "\u2581", "\u2581a", "a", "b"]
    backend = Tokenizer(
        BPE({word: at for at, word in enumerate(words)}, [("\u2581", "a")], unk_token="<unk>")
    )
    backend.normalizer = Prepend("\u2581")
    backend.add_special_tokens(words[:3])
    if template is not None:
        backend.post_processor = TemplateProcessing(
            single=template, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    values = {"tokenizer_class": "LlamaTokenizer", **named, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return load_tokenizer(str(folder))


@pytest.mark.parametrize("name", ["LlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    ("template", "ids", "begins", "ends"),
    [
        ("<s> $A", [1, 4, 6], True, False),
        ("$A </s>", [4, 6, 2], False, True),
        ("<s> $A </s>", [1, 4, 6, 2], True, True),
        (None, [4, 6], False, False),
    ],
)
def test_a_written_tokenizer_says_which_tokens_it_puts_around_texts(
    tmp_path, name, template, ids, begins, ends
):
    """Version 4 of Transformers asks its settings alone, of Llama, Gemma and Cohere; version 5 leaves them out."""
    # The settings of the folder say something else than its file, by which version 5 reads.
    settings = {"tokenizer_class": name, "add_bos_token": not begins, "add_eos_token": not ends}
    tokenizer = llama_tokenizer(tmp_path / "own", template, **settings)
    if name != "GemmaTokenizer":  # which has a normalizer of its own
        assert tokenizer("ab").input_ids == ids

    (tmp_path / "out").mkdir()
    save_tokenizer(tokenizer, tmp_path / "out")

    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (written["add_bos_token"], written["add_eos_token"]) == (begins, ends)
    again = load_tokenizer(str(tmp_path / "out"))
    for text in ("ab", "<s>ab", "ba"):
        assert again(text).input_ids == tokenizer(text).input_ids


def test_a_tokenizer_with_other_tokens_around_texts_says_nothing_of_them(tmp_path):
    tokenizer = llama_tokenizer(tmp_path / "own", "<s> <s> $A")
    (tmp_path / "out").mkdir()

    save_tokenizer(tokenizer, tmp_path / "out")

    assert "add_bos_token" not in (tmp_path / "out" / "tokenizer_config.json").read_text()
