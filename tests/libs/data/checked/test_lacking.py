"""Rows without a column that nobody named are refused without a model, in the words in which a run refuses them."""

import json
from functools import partial

import pytest

from rlhf_config.common import HeldOutRows
from rlhf_core import DataError
from rlhf_data import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    SequenceOptions,
    StepLabelColumns,
    check_example_columns,
    load_conversations,
    load_example_sets,
    load_labeled_answers,
    load_pairs,
    load_step_labels,
)
from rlhf_data.checked.lacking_prompts import check_prompts
from rlhf_data.forms import opened_sets
from rlhf_data.forms.opened_sets import WantedSets
from rlhf_data.sources import open_source
from rlhf_data.tasks import load_prompts

ASKED = [{"role": "user", "content": "Hi"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "Hello."}]
TURNS = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
HUMAN = "\n\nHuman: Hi\n\nAssistant: "
ROWS = {
    "response": {"prompt": "Hi", "response": "Hello."},
    "completion": {"prompt": "Hi", "completion": "Hello."},
    "messages": {"messages": ANSWERED},
    "messages_as_text": {"messages": json.dumps(ANSWERED)},
    "sharegpt": {"conversations": TURNS},
    "alpaca": {"instruction": "Add.", "input": "", "output": "5"},
    "chat_completion": {"prompt": ASKED, "completion": ANSWERED[1:]},
    "text": {"text": "Once upon a time."},
    "pair": {"prompt": "Hi", "chosen": "Hello.", "rejected": "What."},
    "chat_pair": {"chosen": ANSWERED, "rejected": [*ASKED, {**ANSWERED[1], "content": "What."}]},
    "margin": {"prompt": "Hi", "chosen": "Hello.", "rejected": "What.", "margin": "0.5"},
    "hh_rlhf": {"chosen": f"{HUMAN}Hello.", "rejected": f"{HUMAN}What."},
    "labeled": {"prompt": "Hi", "completion": "Hello.", "label": True},
    "labeled_chat": {"prompt": ASKED, "completion": ANSWERED[1:], "label": 0},
    "steps": {"prompt": "1+1?", "completions": ["It is 2."], "labels": [True]},
    "solution": {"text": "1+1?\nIt is 2.\n", "labels": [1, 1]},
    "prompt": {"prompt": "Hi", "answer": "Hello."},
    "chat_prompt": {"messages": ASKED, "answer": "Hello."},
    "question": {"question": "Hi", "reply": "Hello."},
    "question_response": {"question": "Hi", "response": "Hello."},
    "question_pair": {"question": "Hi", "chosen": "Hello.", "rejected": "What."},
    "half_pair": {"prompt": "Hi", "chosen": "Hello."},
    "unlabeled": {"prompt": "Hi", "completions": ["It is 2."]},
    "labels_alone": {"labels": [True]},
    "null": {"prompt": None, "response": None},
}
LOADERS = {
    "sft": (load_conversations, ConversationColumns),
    "pairs": (load_pairs, PairColumns),
    "judged": (load_labeled_answers, LabeledColumns),
    "steps": (load_step_labels, StepLabelColumns),
}
NAMED = (
    {},
    {"form": "columns"},
    {"template": "{question}?"},
    {"template": "{prompt}{nowhere}"},
    {"prompt_key": "question"},
    {"messages_key": "messages"},
    {"margin_key": "margin"},
    {"text_key": "text"},
    {"text_key": "text", "template": "{question}?"},
    {"chat": True},
    {"system_prompt": "Be brief."},
)


def said_by(call):
    """Return the message of a refusal; None where nothing is refused."""
    try:
        call()
    except DataError as error:
        return str(error)
    return None


def both(command, sets, renderer, named, options=None, held=None):
    """Return what the check and the loader say of sets."""
    loader, model = LOADERS[command]
    options, held = options or SequenceOptions(), held or HeldOutRows()
    columns = model(**{key: value for key, value in named.items() if key in model.model_fields})

    def load(sets, options, *, option, side):
        return loader(sets, columns, options, renderer, eos=2, option=option, side=side)

    checked = said_by(partial(check_example_columns, loader, columns, sets, options, held))
    return checked, said_by(partial(load_example_sets, load, sets, options, held))


@pytest.mark.parametrize("named", NAMED, ids=str)
@pytest.mark.parametrize("command", LOADERS)
def test_nothing_is_refused_that_is_read_and_nothing_in_other_words(
    command, named, renderer, write_rows
):
    for name, row in ROWS.items():
        path = write_rows([row] * 7, f"{name}.jsonl")

        checked, loaded = both(command, [path], renderer, named)

        assert checked is None or checked == loaded, name
        if loaded is not None and "(7 missing column)" in loaded:
            assert checked == loaded, name


@pytest.mark.parametrize("named", [one for one in NAMED if "_key" not in str(one)], ids=str)
def test_so_it_is_of_prompts(named, renderer, write_rows, run_config):
    for name, row in ROWS.items():
        path = write_rows([row] * 7, f"{name}.jsonl")
        data = run_config(train=[path], **named).data
        wanted = WantedSets(option="data.train", entries=[path], split="train", max_samples=None)

        checked = said_by(partial(check_prompts, wanted, data, lambda: None))

        loaded = said_by(partial(load_prompts, data, renderer))
        assert checked is None or checked == loaded, name
        if loaded is not None and "(7 missing column)" in loaded:
            assert checked == loaded, name


@pytest.mark.parametrize(
    ("command", "name", "column"),
    [
        ("sft", "question_response", "prompt"),
        ("sft", "prompt", "response"),
        ("sft", "question", "prompt"),
        ("pairs", "half_pair", "rejected"),
        ("pairs", "question_pair", "prompt"),
        ("judged", "completion", "label"),
        ("steps", "unlabeled", "labels"),
        ("steps", "labels_alone", "completions"),
    ],
)
def test_the_column_is_named(command, name, column, renderer, write_rows):
    path = write_rows([ROWS[name]] * 3)

    checked, loaded = both(command, [path], renderer, {})

    assert checked == loaded
    assert checked is not None
    assert f"data.train: 3 of 3 rows cannot be used (3 missing column)\n  {path}:1: " in checked
    assert f"expected a column {column!r}; the row has {', '.join(ROWS[name])}. Set --" in checked


def test_one_row_of_one_set_is_enough(renderer, write_rows):
    lacking = write_rows([ROWS["question"]] * 2, "lacking.jsonl")
    mixed = write_rows([ROWS["question"], "{broken", ROWS["response"]], "mixed.jsonl")
    skipping = SequenceOptions(on_bad_row="skip")

    assert both("sft", [mixed], renderer, {}, skipping) == (None, None)
    assert both("sft", [lacking, mixed], renderer, {"form": "columns"})[0] is None


def test_broken_rows_beside_them_are_counted(renderer, write_rows):
    path = write_rows([ROWS["question"], "{broken"])

    checked, loaded = both("sft", [path], renderer, {})

    assert checked == loaded
    assert "2 of 2 rows cannot be used (1 missing column, 1 unreadable)" in str(checked)


def test_rows_that_are_not_used_do_not_count(renderer, write_rows):
    path = write_rows([ROWS["question"], ROWS["response"]])

    checked, loaded = both(
        "sft", [path], renderer, {"form": "columns"}, SequenceOptions(max_samples=1)
    )

    assert checked == loaded
    assert "1 of 1 rows" in str(checked)


def test_held_out_rows_are_looked_at_first(renderer, write_rows):
    good = write_rows([ROWS["response"]] * 2, "good.jsonl")
    bad = write_rows([ROWS["question"]] * 2, "bad.jsonl")

    checked, loaded = both("sft", [bad], renderer, {}, held=HeldOutRows(data=(good,)))
    assert checked == loaded
    assert str(checked).startswith("data.train: ")

    checked, loaded = both("sft", [bad], renderer, {}, held=HeldOutRows(data=(bad,)))
    assert checked == loaded
    assert str(checked).startswith("eval.data: ")


@pytest.mark.parametrize(
    ("command", "name", "column", "labels"),
    [
        ("judged", "labeled", "label", ["maybe", None]),
        ("steps", "steps", "labels", [[-1], None]),
        ("pairs", "margin", "margin", ["much", None]),
    ],
)
def test_bad_labels_are_named_in_all_rows_and_in_the_words_of_the_run(
    command, name, column, labels, renderer, write_rows
):
    good = ROWS[name]
    rows = [good] * 12 + [{**good, column: label} for label in labels] + [good]
    path = write_rows(rows)

    named = {"margin_key": "margin"}

    checked, loaded = both(command, [path], renderer, named)

    assert checked == loaded
    assert "2 of 15 rows cannot be used" in str(checked)
    assert f"{path}:13: " in str(checked)
    assert f"{path}:14: " in str(checked)
    skipping = SequenceOptions(on_bad_row="skip")
    assert both(command, [path], renderer, named, skipping) == (None, None)


def test_a_labeled_set_is_opened_once(renderer, write_rows, monkeypatch):
    opened = []

    def noted(spec, **options):
        opened.append(spec)
        return open_source(spec, **options)

    monkeypatch.setattr(opened_sets, "open_source", noted)
    good, bad = (
        write_rows([{**ROWS["labeled"], "label": label}] * 3, f"{label}.jsonl")
        for label in (True, "maybe")
    )

    checked, loaded = both("judged", [good, bad], renderer, {}, held=HeldOutRows(data=(good,)))

    assert opened == [good, good, bad]
    assert checked == loaded
    assert "3 of 6 rows cannot be used (3 bad label)" in str(checked)


def test_sets_of_a_hub_are_left_to_the_run():
    check_example_columns(load_pairs, PairColumns(), ["some/set"], SequenceOptions(), HeldOutRows())
