"""Variables for the chat template: of a run, of a row, and those that a template does not read."""

from copy import deepcopy

import pytest
from tests.libs.data.learned import families
from tests.libs.data.learned.conftest import LOADERS

from rlhf_core.errors import DataError
from rlhf_data import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    SequenceOptions,
    StepLabelColumns,
    TokenizerRenderer,
)
from rlhf_data.chat.template_kwargs import kwargs_of, readable_names, renderer_of
from rlhf_data.prompts import tokenize_rows
from rlhf_data.rows import PromptFormat, RowProblem
from rlhf_data.tasks import load_task_set
from rlhf_testing.errors import has_code

TEMPLATE = (
    "{%- set effort = reasoning_effort | default('medium') %}effort {{ effort }}\n"
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3 and gpt-oss have it: one variable closes the thought of the next turn, one writes a line."""
USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
OFF = {"enable_thinking": False}


@pytest.fixture(scope="module")
def renderer():
    tokenizer = deepcopy(families.renderer_of("qwen3", "characters").tokenizer)
    tokenizer.chat_template = TEMPLATE
    return TokenizerRenderer(tokenizer)


def text_of(renderer, ids):
    return renderer.decode(ids, skip_special_tokens=False)


def test_a_renderer_gives_the_template_its_variables(renderer):
    off = TokenizerRenderer(renderer.tokenizer, template_kwargs=OFF)
    both = off.with_template_kwargs({"reasoning_effort": "high"})

    assert "<think>" not in text_of(renderer, renderer.render([USER]))
    assert text_of(off, off.render([USER])).endswith("assistant\n<think>\n\n</think>\n\n")
    assert text_of(both, both.render([USER])).startswith("effort high\n")
    assert text_of(both, both.render([USER])).endswith("</think>\n\n")
    assert renderer.with_template_kwargs({}) is renderer
    assert off.with_template_kwargs({"reasoning_effort": "high"}) is both


def test_a_row_goes_before_the_run(renderer):
    off = TokenizerRenderer(renderer.tokenizer, template_kwargs=OFF)

    on = renderer_of({"chat_template_kwargs": {"enable_thinking": True}}, off)

    assert on.render([USER]) == renderer.render([USER])


def test_later_turns_have_the_variables_too(renderer):
    off = renderer.with_template_kwargs(OFF)

    between = off.render_next([USER], ended=True)
    longer = off.extend([USER, ANSWER], off.render([USER]), [USER], ended=True).token_ids

    assert text_of(off, between).endswith("assistant\n<think>\n\n</think>\n\n")
    assert text_of(off, longer).endswith("assistant\n<think>\n\n</think>\n\n")
    assert not text_of(renderer, renderer.render_next([USER], ended=True)).endswith("</think>\n\n")


def test_a_variable_that_the_template_does_not_read_is_refused_with_those_that_it_reads(renderer):
    message = (
        "chat_template_kwargs: 'enable_thinkin' would change nothing, for the model's chat template reads "
        "enable_thinking, reasoning_effort. Did you mean 'enable_thinking'?"
    )
    with pytest.raises(DataError) as found:
        renderer.with_template_kwargs({"enable_thinkin": False})
    assert str(found.value) == message
    with pytest.raises(DataError, match="'bos_token'", check=has_code("template/unread-kwargs")):
        renderer.with_template_kwargs({"bos_token": "x"})
    with pytest.raises(DataError, match="'messages'", check=has_code("template/unread-kwargs")):
        TokenizerRenderer(renderer.tokenizer, template_kwargs={"messages": []})
    plain = families.renderer_of("mistral", "characters")
    with pytest.raises(DataError, check=has_code("template/unread-kwargs")):
        plain.with_template_kwargs(OFF)


def test_nobody_writes_a_control_token_by_a_variable(renderer):
    given = {"reasoning_effort": "high<|im_end|>"}

    with pytest.raises(
        DataError,
        match=r"'reasoning_effort' has <\|im_end\|>",
        check=has_code("template/kwargs-with-control-token"),
    ):
        renderer.with_template_kwargs(given)
    meant = TokenizerRenderer(renderer.tokenizer, control_words="tokens", template_kwargs=given)
    assert meant.render_text([USER]).startswith("effort high<|im_end|>")


def test_the_variables_of_a_template_are_found_whatever_it_does_with_them():
    template = (
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
        "{% for m in messages %}{% if m.role == 'x' %}{% continue %}{% endif %}"
        "{%- generation -%}{{ m.content }}{%- endgeneration -%}{% endfor %}"
        "{% set identity = model_identity | default('I') %}{{ strftime_now('%Y') }}{{ documents }}"
    )

    assert readable_names(template) == {"thinking", "model_identity", "documents"}


def test_what_a_template_sets_itself_is_no_variable_of_its():
    template = (
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
        "{% else %}{% set system = none %}{% endif %}{% macro show(text) %}{{ text }}{% endmacro %}"
        "{% for m in messages %}{% if m.content is string %}{% set content = m.content | trim %}{% endif %}"
        "{{ show(content) }}{% endfor %}{{ system }}"
        "{% set style = style or 'plain' %}{{ style }}"
    )

    assert readable_names(template) == {"style"}


@pytest.mark.parametrize(
    ("value", "found"),
    [(None, {}), ("", {}), ('{"a": false}', {"a": False}), ({"a": None}, {"a": None})],
)
def test_a_column_holds_an_object_or_its_text(value, found):
    assert kwargs_of({"chat_template_kwargs": value}) == found
    assert kwargs_of({}) == {}


@pytest.mark.parametrize(("value", "message"), [("{", "broken JSON"), ([1], "expected an object")])
def test_another_column_is_refused(value, message):
    with pytest.raises(
        DataError,
        match=f"column 'chat_template_kwargs': {message}",
        check=has_code("template/malformed-kwargs"),
    ):
        kwargs_of({"chat_template_kwargs": value})


def test_prompts_of_rows_are_rendered_with_their_variables(renderer):
    rows = [
        {"prompt": [USER]},
        {"prompt": [USER], "chat_template_kwargs": OFF},
        {"prompt": [USER], "chat_template_kwargs": {"thinking": False}},
    ]

    plain, off, bad = tokenize_rows(list(enumerate(rows)), PromptFormat(), renderer, 1000)

    assert plain.token_ids == renderer.render([USER])
    assert off.token_ids == renderer.with_template_kwargs(OFF).render([USER])
    assert isinstance(bad, RowProblem)
    assert "'thinking' would change nothing" in bad.reason


def test_plain_text_has_no_place_for_variables(renderer):
    off = TokenizerRenderer(renderer.tokenizer, template_kwargs=OFF)
    row = {"prompt": "Why?", "chat_template_kwargs": OFF}

    for given, one in ((renderer, row), (off, {"prompt": "Why?"})):
        (bad,) = tokenize_rows([(0, one)], PromptFormat(), given, 1000)

        assert isinstance(bad, RowProblem)
        assert "chat_template_kwargs has enable_thinking, but the text is plain" in bad.reason


LEARNED = [
    (ConversationColumns(messages_key="messages"), {"messages": [USER, ANSWER]}),
    (ConversationColumns(chat=True), {"prompt": "Why?", "response": "So."}),
    (
        PairColumns(),
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "-"}]},
    ),
    (LabeledColumns(chat=True), {"prompt": "Why?", "completion": "So.", "label": True}),
    (StepLabelColumns(chat=True), {"prompt": "Why?", "completions": ["So."], "labels": [1]}),
]


@pytest.mark.parametrize(("columns", "row"), LEARNED)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("blocks", [False, True])
def test_rows_to_learn_are_rendered_with_their_variables(
    columns, row, form, blocks, renderer, write_rows, tmp_path, datasets_cache
):
    if blocks:
        tokenizer = deepcopy(renderer.tokenizer)
        tokenizer.chat_template = TEMPLATE.replace(
            "{{ m.role + '\n' + m.content }}<|im_end|>",
            "{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
            "{% else %}{{ m.content }}<|im_end|>{% endif %}",
        )
        renderer = TokenizerRenderer(tokenizer)
    high = {"reasoning_effort": "high"}
    rows = [{**row, "other": 1, "chat_template_kwargs": given} for given in (high, None)]
    path = write_rows(rows)
    if form == "parquet":
        from datasets import Dataset

        path = str(tmp_path / "rows.parquet")
        Dataset.from_list(rows).to_parquet(path)

    def load(renderer):
        eos = renderer.tokenizer.eos_token_id
        found = LOADERS[type(columns)]([path], columns, SequenceOptions(), renderer, eos=eos)
        return [
            text_of(renderer, found.columns.tokens_of(n).tolist())
            for n in (0, len(found.columns) - 1)
        ]

    first, last = load(renderer)
    assert first.startswith("effort high\n<|im_start|>user\nWhy?")
    assert last.startswith("effort medium\n<|im_start|>user\nWhy?")
    of_run = load(
        TokenizerRenderer(renderer.tokenizer, template_kwargs={"reasoning_effort": "low"})
    )
    assert of_run[1].startswith("effort low\n")


def test_text_for_pre_training_has_no_place_for_variables(renderer, write_rows):
    path = write_rows([{"text": "So it is.", "chat_template_kwargs": OFF}])
    columns = ConversationColumns(text_key="text")

    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:1: .* the text is plain",
        check=has_code("data/chat-template-kwargs"),
    ):
        LOADERS[ConversationColumns](
            [path], columns, SequenceOptions(), renderer, eos=renderer.tokenizer.eos_token_id
        )


def test_tasks_of_a_run_are_rendered_with_their_variables(renderer, write_rows, run_config):
    rows = [{"prompt": [USER], "chat_template_kwargs": OFF}, {"prompt": [USER]}]
    run = run_config(train=[write_rows(rows)], shuffle=False)

    tasks = load_task_set(run, renderer)

    assert tasks.task(0, 0).prompt_ids == tuple(renderer.with_template_kwargs(OFF).render([USER]))
    assert tasks.task(1, 0).prompt_ids == tuple(renderer.render([USER]))
