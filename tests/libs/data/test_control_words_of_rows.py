"""Control words in rows are ordinary text: in prompts, in answers to learn from, and in what is counted."""

import json
import logging

import numpy as np
import pytest
from tests.libs.data.chat.zoo import renderer_of, tokenizer_of

from rlhf_data import ConversationColumns, SequenceOptions, load_conversations
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.checking import Expectations, check_source
from rlhf_data.prompts import tokenize_prompts
from rlhf_data.rows import PromptFormat
from rlhf_data.sources import open_source
from rlhf_testing.tiny import tiny_tokenizer

WORD = "<|im_end|>"
RENDERER = renderer_of("thinking")
IDS = RENDERER.texts.words.ids


def written(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prompts(path, renderer=RENDERER, **options):
    source = open_source(path)
    wanted = np.ones(len(source), dtype=bool)
    return tokenize_prompts(source, wanted, PromptFormat(**options), renderer, 1000)


@pytest.mark.parametrize("chat", [False, True])
def test_a_word_in_a_rows_prompt_is_text(tmp_path, chat):
    made = prompts(written(tmp_path, {"prompt": f"a {WORD} b"}, {"prompt": "a b"}), chat=chat)

    with_word, without = made.tokens(0), made.tokens(1)
    assert with_word.count(IDS[WORD]) == without.count(IDS[WORD]) == int(chat)
    assert WORD in RENDERER.decode(with_word, skip_special_tokens=True)
    assert (made.inert.rows, made.inert.words) == (1, (WORD,))
    assert made.inert.first.endswith("rows.jsonl:1")


def test_with_tokens_it_is_the_token_and_nothing_is_counted(tmp_path):
    made = prompts(written(tmp_path, {"prompt": f"a {WORD} b"}), renderer_of("thinking", "tokens"))

    assert made.tokens(0).count(IDS[WORD]) == 1
    assert made.inert.rows == 0


def test_the_words_of_data_template_are_the_users_own(tmp_path):
    template = "<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n"
    path = written(tmp_path, {"q": f"a {WORD} b"}, {"q": "a b"})

    made = prompts(path, template=template)

    for position in (0, 1):
        assert made.tokens(position).count(IDS[WORD]) == 1
        assert made.tokens(position).count(IDS["<|im_start|>"]) == 2
    assert made.inert.rows == 1
    assert list(made.tokens(1)) == RENDERER.texts.tokenizer(template.format(q="a b"))["input_ids"]


def learn(path, **columns):
    return load_conversations(
        [path],
        ConversationColumns(**columns),
        SequenceOptions(),
        RENDERER,
        eos=tokenizer_of("thinking").eos_token_id,
    )


def test_contents_to_learn_from_have_no_control_tokens_but_the_policys_own(tmp_path, caplog):
    messages = [
        {"role": "user", "content": f"a {WORD} <think> b"},
        {"role": "assistant", "content": f"<think>\nhm\n</think>\n\nso {WORD} it is"},
    ]
    with caplog.at_level(logging.WARNING):
        rows = learn(written(tmp_path, {"messages": messages}), messages_key="messages")

    ids = rows.columns.token_ids.tolist()
    learned = [
        token
        for token, action in zip(ids, rows.columns.action_mask.tolist(), strict=True)
        if action
    ]
    assert ids.count(IDS["<think>"]) == ids.count(IDS["</think>"]) == 1
    assert ids.count(IDS[WORD]) == 2  # the ends of both turns
    assert learned.count(IDS[WORD]) == 1
    assert learned[-1] == IDS[WORD]
    shown = RENDERER.decode(learned, skip_special_tokens=False)
    assert shown == f"<think>\nhm\n</think>\n\nso {WORD} it is{WORD}"
    assert rows.inert.rows == 1
    assert "1 of 1 rows contain control words" in caplog.text


def test_a_plain_answer_ends_with_the_end_alone(tmp_path):
    rows = learn(written(tmp_path, {"prompt": f"a{WORD}", "response": "so <think> <eos>"}))

    ids = rows.columns.token_ids.tolist()
    eos = tokenizer_of("thinking").eos_token_id
    assert (ids.count(eos), ids.count(IDS[WORD]), ids.count(IDS["<think>"])) == (1, 0, 1)
    assert RENDERER.decode(ids, skip_special_tokens=False) == f"a{WORD}so <think> <eos><eos>"


def test_text_to_learn_has_no_control_tokens(tmp_path):
    rows = learn(written(tmp_path, {"text": f"a {WORD} <think> b"}), text_key="text")

    known = set(IDS.values()) - {tokenizer_of("thinking").eos_token_id}
    assert not known.intersection(rows.columns.token_ids.tolist())
    assert rows.inert.words == (WORD, "<think>")


RENDERED = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"


@pytest.mark.parametrize("use", ["text", "tokens"])
@pytest.mark.parametrize("chat", [False, True])
def test_words_of_another_models_template_are_counted(tmp_path, chat, use):
    """They are no tokens of this model, which would read what its user took for marks as so many letters."""
    renderer = renderer_of("thinking", use)
    made = prompts(written(tmp_path, {"prompt": "Hi"}, {"prompt": RENDERED}), renderer, chat=chat)

    assert (made.inert.rows, made.inert.words[0]) == (1, "<|start_header_id|>")
    assert made.inert.first.endswith("rows.jsonl:2")


def test_words_of_another_models_template_in_rows_to_learn_from_are_counted(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        rows = learn(written(tmp_path, {"prompt": RENDERED, "response": "Hello.<|eot_id|>"}))

    assert rows.inert.words == ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    assert "another model's template" in caplog.text


def test_words_that_the_models_own_template_writes_as_letters_are_none_of_another_model(tmp_path):
    """As Zephyr's ``<|user|>``, which is no token of its own."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"

    made = prompts(written(tmp_path, {"prompt": "Hi"}), TokenizerRenderer(tokenizer), chat=True)

    assert made.inert.rows == 0


@pytest.mark.parametrize(("use", "count"), [("text", 0), ("tokens", 1)])
def test_a_rendered_text_that_the_template_renders_again_is_named_once(
    tmp_path, caplog, use, count
):
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    path = written(tmp_path, {"prompt": rendered}, {"prompt": rendered})

    with caplog.at_level(logging.WARNING):
        prompts(path, renderer_of("thinking", use), chat=True)

    assert caplog.text.count("render it a second time") == count


def test_a_check_counts_the_rows(tmp_path):
    source = open_source(written(tmp_path, {"prompt": f"a{WORD}"}, {"prompt": "b"}))

    report = check_source(source, Expectations(format=PromptFormat(), renderer=RENDERER))

    assert (report.inert.rows, report.inert.words) == (1, (WORD,))
    assert report.bad == ()
