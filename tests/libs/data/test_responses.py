"""Responses to imitate: prompt, response, end-of-sequence; bad rows by file and line."""

import pytest
from tests.libs.data.chat.template.shipped import renderer_of
from tests.released_templates import released_tokenizer

from rlhf_core.errors import DataError
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.responses import load_responses
from rlhf_testing.errors import has_code


@pytest.fixture
def load(run_config, renderer):
    def run(*paths, **changes):
        config = run_config()
        supervised = config.supervised.model_copy(update={"data": paths, **changes})
        config = config.model_copy(update={"supervised": supervised})
        return load_responses(config, renderer, eos=2)

    return run


def test_the_response_and_its_end_are_what_is_imitated(load, write_rows, renderer):
    path = write_rows([{"prompt": "ab", "response": "cd"}, {"prompt": "x", "response": "y"}])

    rows = load(path)

    assert rows.tokens_of(0).tolist() == [*renderer.encode("abcd"), 2]
    assert rows.actions_of(0).tolist() == [*renderer.encode("cd"), 2]
    assert rows.num_actions.tolist() == [3, 2]


def test_an_answer_to_a_chat_ends_with_the_template_s_token(run_config, write_rows):
    tokenizer = released_tokenizer("qwen2_5")
    chat = [{"role": "user", "content": "ab"}]
    path = write_rows([{"prompt": chat, "response": "c"}, {"prompt": "ab", "response": "c"}])
    config = run_config()
    supervised = config.supervised.model_copy(update={"data": (path,)})
    config = config.model_copy(update={"supervised": supervised})

    rows = load_responses(config, TokenizerRenderer(tokenizer), eos=tokenizer.eos_token_id)

    ends = [rows.actions_of(row)[-1] for row in range(2)]
    assert tokenizer.convert_ids_to_tokens(ends) == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|>"])
def test_a_response_that_has_an_end_of_turn_gets_no_other(run_config, write_rows, end):
    tokenizer = released_tokenizer("qwen2_5")
    path = write_rows([{"prompt": "ab", "response": f"c{end}"}])
    config = run_config()
    supervised = config.supervised.model_copy(update={"data": (path,)})
    config = config.model_copy(update={"supervised": supervised})
    renderer = TokenizerRenderer(tokenizer, control_words="tokens")

    rows = load_responses(config, renderer, eos=tokenizer.eos_token_id)

    assert tokenizer.convert_ids_to_tokens(rows.actions_of(0)) == ["c", end]


@pytest.mark.parametrize(
    ("name", "response", "expected"),
    [
        ("gptoss", "So.", "<|channel|>final<|message|>So.<|return|>"),
        ("glm4moe", "So.", "\n<think></think>\nSo.<|user|>"),
        ("qwen3", "So.", "<think>\n\n</think>\n\nSo.<|im_end|>"),
        ("qwen3", "<think>\nHm.\n</think>\n\nSo.", "<think>\nHm.\n</think>\n\nSo.<|im_end|>"),
        ("qwen3_training", "So.", "<think>\n\n</think>\n\nSo.<|im_end|>"),
        ("qwen3_5_think", "So.", "\n</think>\n\nSo.<|im_end|>"),
        ("mistral_v3", "So.", " So.</s>"),
        ("llama3", "So.", "So.<|eot_id|>"),
        ("qwen2_5", "Not <|im_start|>.", "Not <|im_start|>.<|im_end|>"),
        # The prompt begins a thought that the template drops from answers: the response goes on with it.
        (
            "deepseekv3",
            "Hm.</think>So.",
            "Hm.</think>So.<\uff5cend\u2581of\u2581sentence\uff5c>",
        ),
    ],
)
def test_an_answer_to_a_chat_stands_behind_the_prompt_as_the_template_shows_it(
    run_config, write_rows, name, response, expected
):
    """``So.`` right behind ``<|start|>assistant`` is in no channel, and no model of gpt-oss writes it."""
    renderer = renderer_of(name)
    asked = [{"role": "user", "content": "Why?"}]
    config = run_config()
    supervised = config.supervised.model_copy(
        update={"data": (write_rows([{"prompt": asked, "response": response}]),)}
    )
    config = config.model_copy(update={"supervised": supervised})

    rows = load_responses(config, renderer, eos=renderer.tokenizer.eos_token_id)

    tokens, actions = rows.tokens_of(0).tolist(), rows.actions_of(0).tolist()
    assert renderer.decode(actions, skip_special_tokens=False) == expected
    assert tokens == [*renderer.render(asked), *actions]


def test_columns_may_have_other_names(load, write_rows, renderer):
    path = write_rows([{"question": "ab", "solution": "c"}])

    rows = load(path, prompt_key="question", response_key="solution")

    assert rows.actions_of(0).tolist() == [*renderer.encode("c"), 2]


def test_sets_are_joined(load, write_rows):
    first = write_rows([{"prompt": "a", "response": "b"}], "first.jsonl")
    second = write_rows([{"prompt": "c", "response": "d"}], "second.jsonl")

    assert len(load(first, second)) == 2


@pytest.mark.parametrize(
    ("row", "reason", "code"),
    [
        (
            {"prompt": "a"},
            "expected a column 'response'; the row has prompt",
            "data/missing-column",
        ),
        ({"prompt": "a", "response": ""}, "column 'response' is empty", "data/empty"),
        ({"prompt": "a", "response": 3}, "expected text, got int", "data/wrong-type"),
        (
            {"prompt": "a", "response": "b" * 20_000},
            "max_tokens_per_micro_batch allows 16384",
            "data/too-long",
        ),
        ({"prompt": "", "response": "b"}, "empty", "data/empty"),
        (
            {"prompt": "a", "response": "[{'role': 'assistant', 'content': 'b'}]"},
            "messages as Python prints them",
            "data/printed-messages",
        ),
    ],
)
def test_bad_rows_are_named_by_file_and_line(load, write_rows, row, reason, code):
    path = write_rows([{"prompt": "a", "response": "b"}, row])

    with pytest.raises(
        DataError, match=r"supervised\.data: 1 of 2 rows cannot be used", check=has_code(code)
    ) as error:
        load(path)

    assert "rows.jsonl:2" in str(error.value)
    assert reason in str(error.value)
