"""Task sets: what the loop draws from, by epoch and index."""

import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.libs.data.chat.zoo import renderer_of

from rlhf_core.contracts import Uid
from rlhf_core.errors import DataError
from rlhf_data.forms.opened_sets import OpenedSets
from rlhf_data.rows import PromptFormat
from rlhf_data.tasks import check_held_out, load_eval_sets, load_task_set
from rlhf_testing.errors import has_code


def numbered(count: int, prefix: str = "", **columns) -> list[dict]:
    return [
        {"prompt": f"{prefix}{number}=", "answer": number, **columns} for number in range(count)
    ]


def prompts_of(tasks, renderer, epoch=0, seed=0) -> list[str]:
    return [
        renderer.decode(tasks.task(int(index), epoch).prompt_ids)
        for index in tasks.order(epoch, seed)
    ]


def test_a_task_has_the_tokens_the_row_and_the_name_of_its_sample(write_rows, run_config, renderer):
    tasks = load_task_set(run_config(train=[write_rows(numbered(3), "sums.jsonl")]), renderer)

    task = tasks.task(2, epoch=5)

    assert task.uid == Uid(5, 2)
    assert task.prompt_ids == tuple(renderer.encode("2="))
    assert task.row == {"prompt": "2=", "answer": 2}
    assert (task.dataset, task.messages) == ("sums", ())


def test_chat_prompts_are_rendered_and_their_messages_kept(write_rows, run_config, renderer):
    path = write_rows([{"prompt": "hi"}, {"prompt": [{"role": "user", "content": "ho"}]}])
    tasks = load_task_set(run_config(train=[path], chat=True, system_prompt="be brief"), renderer)

    task = tasks.task(1, 0)

    assert renderer.decode(task.prompt_ids) == "system:be brief\nuser:ho\nassistant:"
    assert [message["content"] for message in task.messages] == ["be brief", "ho"]
    assert renderer.decode(tasks.task(0, 0).prompt_ids) == "system:be brief\nuser:hi\nassistant:"


@pytest.mark.parametrize(
    ("template", "options", "is_said"),
    [
        ("thinking", {}, True),  # marks turns by control words
        ("thinking", {"chat": True}, False),
        ("thinking", {"template": "<|im_start|>user\n{prompt}<|im_end|>\n"}, False),
        (None, {}, False),  # writes plain words around turns
    ],
)
def test_plain_text_for_a_chat_model_is_said_once(
    template, options, is_said, write_rows, run_config, renderer, caplog
):
    chosen = renderer_of(template) if template else renderer
    paths = [write_rows(numbered(2), "one.jsonl"), write_rows(numbered(2), "two.jsonl")]

    with caplog.at_level(logging.INFO):
        load_task_set(run_config(train=paths, **options), chosen)

    said = [record for record in caplog.messages if "gets no chat template" in record]
    assert len(said) == int(is_said)
    assert all("data.train" in line and "--data.chat" in line for line in said)


def test_a_text_beside_a_chat_has_no_messages(write_rows, run_config, renderer):
    path = write_rows([{"prompt": "hi"}, {"prompt": [{"role": "user", "content": "ho"}]}])
    tasks = load_task_set(run_config(train=[path]), renderer)

    assert [tuple(tasks.task(index, 0).messages) for index in (0, 1)] == [
        (),
        ({"role": "user", "content": "ho"},),
    ]


def test_rows_of_plain_text_are_formatted_once(write_rows, run_config, renderer, monkeypatch):
    """Each step makes tasks of rows that the run has tokenized."""
    tasks = load_task_set(run_config(train=[write_rows(numbered(2))]), renderer)
    monkeypatch.delattr(PromptFormat, "prompt")

    assert tasks.task(1, 0).prompt_ids == tuple(renderer.encode("1="))


def test_a_task_is_made_anew_each_time(write_rows, run_config, renderer):
    """What a reward does to one task's row does not reach the next epoch's."""
    tasks = load_task_set(run_config(train=[write_rows(numbered(2))]), renderer)
    dict(tasks.task(0, 0).row).clear()
    tasks.task(0, 0).row["answer"] = "spoiled"

    assert tasks.task(0, 1).row["answer"] == 0


def test_every_epoch_has_every_task_once_in_another_order(write_rows, run_config, renderer):
    tasks = load_task_set(run_config(train=[write_rows(numbered(30))]), renderer)

    first, second = (tasks.order(epoch, 7).tolist() for epoch in (0, 1))

    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    assert first == tasks.order(0, 7).tolist()


def test_without_shuffle_the_order_is_the_files(write_rows, run_config, renderer):
    run = run_config(train=[write_rows(numbered(5))], shuffle=False)

    assert load_task_set(run, renderer).order(3, 1).tolist() == [0, 1, 2, 3, 4]


def test_indices_count_through_the_concatenation_of_all_sets(write_rows, run_config, renderer):
    paths = [write_rows(numbered(3, "a"), "a.jsonl"), write_rows(numbered(4, "b"), "b.jsonl")]
    tasks = load_task_set(run_config(train=paths, shuffle=False), renderer)

    assert prompts_of(tasks, renderer) == ["a0=", "a1=", "a2=", "b0=", "b1=", "b2=", "b3="]
    assert tasks.task(3, 0).row["prompt"] == "b0="
    assert tasks.task(3, 0).dataset == "b"


def test_the_first_rows_of_each_set_can_be_used_alone(write_rows, run_config, renderer):
    paths = [write_rows(numbered(9, "a"), "a.jsonl"), write_rows(numbered(9, "b"), "b.jsonl")]
    tasks = load_task_set(run_config(train=paths, max_samples=2, shuffle=False), renderer)

    assert prompts_of(tasks, renderer) == ["a0=", "a1=", "b0=", "b1="]
    assert tasks.order(0, 0).tolist() == [0, 1, 9, 10]


def test_a_mix_has_its_shares(write_rows, run_config, renderer):
    paths = [write_rows(numbered(60, "a"), "a.jsonl"), write_rows(numbered(60, "b"), "b.jsonl")]
    tasks = load_task_set(run_config(train=paths, probabilities=[0.25, 0.75]), renderer)

    prompts = prompts_of(tasks, renderer)

    assert len(tasks) == len(set(prompts)) == 80
    assert sum(prompt.startswith("a") for prompt in prompts) == 20


def test_held_out_rows_are_evaluated_and_not_trained_on(write_rows, run_config, renderer):
    path = write_rows(numbered(200), "mine.jsonl")
    run = run_config(train=[path], eval={"fraction": 0.2}, seed=4)
    tasks, held = load_task_set(run, renderer), load_eval_sets(run, renderer)

    trained, evaluated = prompts_of(tasks, renderer), prompts_of(held["mine"], renderer)

    assert list(held) == ["mine"]
    assert 20 <= len(evaluated) <= 60
    assert sorted(trained + evaluated) == sorted(row["prompt"] for row in numbered(200))
    # indices are the rows' own in training; evaluation counts from 0
    assert all(tasks.task(int(i), 0).row["answer"] == i for i in tasks.order(0, 0))
    assert held["mine"].order(-1, 0).tolist() == list(range(len(evaluated)))


def test_the_split_depends_on_no_seed_no_order_and_no_other_set(write_rows, run_config, renderer):
    mine, other = (
        write_rows(numbered(80), "mine.jsonl"),
        write_rows(numbered(5, "x"), "other.jsonl"),
    )

    def held(train, seed=0):
        run = run_config(train=train, eval={"fraction": 0.3}, seed=seed)
        return prompts_of(load_eval_sets(run, renderer)["mine"], renderer)

    assert held([mine]) == held([other, mine]) == held([mine], seed=1)
    turned = write_rows(numbered(80)[::-1], "mine.jsonl")
    assert sorted(held([turned])) == sorted(held([mine]))


def test_held_out_rows_of_sets_with_one_name_are_one_set(
    write_rows, run_config, renderer, tmp_path
):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    paths = [write_rows(numbered(20, name), f"{name}/same.jsonl") for name in ("a", "b")]
    run = run_config(train=paths, eval={"fraction": 0.5})

    sets = load_eval_sets(run, renderer)

    assert list(sets) == ["same"]
    assert {prompt[0] for prompt in prompts_of(sets["same"], renderer)} == {"a", "b"}


def test_held_out_rows_can_be_limited(write_rows, run_config, renderer):
    path = write_rows(numbered(100), "mine.jsonl")
    limited = run_config(train=[path], eval={"fraction": 0.5, "max_samples": 3})

    assert len(load_eval_sets(limited, renderer)["mine"]) == 3
    assert len(load_task_set(limited, renderer)) < 70, "the others are held out all the same"


def test_evaluation_sets_are_named(write_rows, run_config, renderer):
    path, other = write_rows(numbered(3), "easy.jsonl"), write_rows(numbered(4), "x.jsonl")
    run = run_config(train=[path], eval={"data": [path, f"hard={other}"], "max_samples": 2})

    sets = load_eval_sets(run, renderer)

    assert {name: len(tasks) for name, tasks in sets.items()} == {"easy": 2, "hard": 2}
    assert sets["hard"].task(1, -1).uid == Uid(-1, 1)
    assert sets["hard"].task(1, -1).dataset == "hard"


def test_a_run_says_how_many_held_out_prompts_it_trains_on(
    write_rows, run_config, renderer, caplog
):
    """Keys and other columns do not count, since the policy does not read them."""
    train = write_rows([row | {"key": row["prompt"]} for row in numbered(9)], "train.jsonl")
    test = write_rows([{"prompt": f"{i}=", "key": i} for i in range(7, 12)], "test.jsonl")
    run = run_config(train=[train], eval={"data": [test]})

    check_held_out(run, load_task_set(run, renderer), load_eval_sets(run, renderer))

    assert "the run also trains on 2 of the 5 rows of the held-out set 'test'" in caplog.text
    run = run_config(train=[train], eval={"data": [train]})
    with pytest.raises(
        DataError, match="9 of 9 of 'train'", check=has_code("data/held-out-rows-train")
    ):
        check_held_out(run, load_task_set(run, renderer), load_eval_sets(run, renderer))


def test_with_an_environment_rows_of_one_prompt_are_told_apart_by_their_columns(
    write_rows, run_config, renderer, caplog
):
    """An environment shows the policy what stands in the row."""
    rows = [{"key": i, "prompt": "Play.", "secret": i % 8} for i in range(12)]
    train, test = write_rows(rows[:6], "train.jsonl"), write_rows(rows[6:], "test.jsonl")
    run = run_config(train=[train], eval={"data": [test]})
    run = run.model_copy(update={"env": run.env.model_copy(update={"use": ("game",)})})

    check_held_out(run, load_task_set(run, renderer), load_eval_sets(run, renderer))

    assert "the run also trains on 4 of the 6 rows of the held-out set 'test'" in caplog.text
    held = {"eval": run.eval.model_copy(update={"data": (), "fraction": 0.3})}
    sets = load_eval_sets(run.model_copy(update=held), renderer)
    assert 1 <= len(sets["train"]) <= 4, "rows of one prompt are held out all the same"


def test_two_evaluation_sets_of_one_name_are_refused(write_rows, run_config, renderer):
    path = write_rows(numbered(3), "easy.jsonl")

    with pytest.raises(DataError, match="'easy'", check=has_code("data/repeated-name")):
        load_eval_sets(run_config(train=[path], eval={"data": [path, path]}), renderer)


def test_no_evaluation_is_no_sets(write_rows, run_config, renderer):
    assert load_eval_sets(run_config(train=[write_rows(numbered(3))]), renderer) == {}


def test_one_row_cannot_be_split(write_rows, run_config, renderer):
    run = run_config(train=[write_rows(numbered(1))], eval={"fraction": 0.5})

    with pytest.raises(
        DataError, match="expected sets of at least 2 rows", check=has_code("data/no-held-out")
    ):
        load_eval_sets(run, renderer)


BAD = [{"prompt": "0="}, {"question": "x"}, '{"broken"', {"prompt": ""}, {"prompt": "4=" * 20}]


def test_bad_rows_stop_the_run_with_file_and_line(write_rows, run_config, renderer):
    run = run_config(train=[write_rows(BAD)], max_prompt_tokens=8)

    with pytest.raises(DataError) as caught:
        load_task_set(run, renderer)

    message = str(caught.value)
    assert "data.train: 4 of 5 rows cannot be used" in message
    for place in (
        "rows.jsonl:2: expected a column 'prompt'",
        "rows.jsonl:3: broken JSON",
        "rows.jsonl:4: the prompt is empty",
        "rows.jsonl:5: the prompt has 40 tokens, --data.max_prompt_tokens allows 8",
    ):
        assert place in message


def test_bad_rows_of_several_sets_are_one_error(write_rows, run_config, renderer):
    paths = [write_rows(BAD, "a.jsonl"), write_rows(BAD, "b.jsonl")]

    with pytest.raises(
        DataError, match="8 of 10 rows cannot be used", check=has_code("data/bad-rows")
    ):
        load_task_set(run_config(train=paths, max_prompt_tokens=8), renderer)


def test_bad_rows_can_be_skipped_and_are_counted(write_rows, run_config, renderer, caplog):
    path = write_rows([*BAD, {"prompt": "5="}])
    run = run_config(train=[path], max_prompt_tokens=8, on_bad_row="skip", shuffle=False)
    with caplog.at_level(logging.WARNING):
        tasks = load_task_set(run, renderer)

    assert len(tasks) == 2
    assert tasks.order(0, 0).tolist() == [0, 5], "the names of the other samples stay as they were"
    assert tasks.task(5, 0).row == {"prompt": "5="}
    assert len(tasks.skipped) == 4
    assert "left out 4 of 6 rows" in caplog.text


def test_a_skipped_row_has_no_task(write_rows, run_config, renderer):
    run = run_config(train=[write_rows(BAD)], max_prompt_tokens=8, on_bad_row="skip")
    tasks = load_task_set(run, renderer)

    for index in (1, 5, -1):
        with pytest.raises(IndexError, match="no task has index"):
            tasks.task(index, 0)


def test_a_set_without_usable_rows_is_an_error_even_when_skipping(write_rows, run_config, renderer):
    paths = [write_rows([{"q": 1}], "bad.jsonl"), write_rows(numbered(2))]

    with pytest.raises(DataError, match=r"bad\.jsonl", check=has_code("data/none-left")):
        load_task_set(run_config(train=paths, on_bad_row="skip"), renderer)
    with pytest.raises(DataError, match="1 of 1", check=has_code("data/missing-column")):
        load_task_set(run_config(train=paths[:1], on_bad_row="skip"), renderer)


def test_what_the_chat_template_refuses_is_a_bad_row(write_rows, run_config):
    from rlhf_data.chat.renderer import TokenizerRenderer
    from rlhf_testing.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    path = write_rows([{"prompt": "a"}])

    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:1: the chat template refuses the messages: never",
        check=has_code("data/chat-template"),
    ):
        load_task_set(run_config(train=[path], chat=True), TokenizerRenderer(tokenizer))


def test_a_table_gives_the_same_tasks_as_lines(tmp_path, write_rows, run_config, renderer):
    from datasets import Dataset

    rows = [{"prompt": f"{n}=", "answer": str(n), "extra": [n]} for n in range(1500)]
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    sets = [
        load_task_set(run_config(train=[path]), renderer)
        for path in (write_rows(rows), str(tmp_path / "saved"))
    ]

    for index in (0, 999, 1000, 1499):
        lines, table = (tasks.task(index, 0) for tasks in sets)
        assert (lines.prompt_ids, lines.row) == (table.prompt_ids, table.row)


def test_without_data_and_environments_an_epoch_is_a_batch_of_empty_tasks(run_config, renderer):
    assert len(load_task_set(run_config(batch_size=6), renderer)) == 6
    assert len(load_task_set(run_config(max_samples=11), renderer)) == 11


@settings(
    max_examples=25,
    deadline=None,  # the first example loads libraries
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    texts=st.lists(st.text(alphabet="ab\u00e9 \0\n"), min_size=1, max_size=12),
    fraction=st.sampled_from([0.0, 0.2, 0.5, 0.8]),
    seed=st.integers(0, 2**40),
)
def test_every_row_is_trained_on_or_held_out_or_skipped(
    write_rows, run_config, renderer, texts, fraction, seed
):
    """Counts add up for any rows, and no row is on two sides."""
    # with 40 good rows a side without any has a chance below 1e-4 for shares from 0.2 to 0.8
    good = [{"prompt": f"fine {number}"} for number in range(40)]
    rows = [{"prompt": text, "number": number} for number, text in enumerate(texts)]
    run = run_config(
        train=[write_rows([*rows, *good], "rows.jsonl"), write_rows(good, "more.jsonl")],
        on_bad_row="skip",
        eval={"fraction": fraction},
        seed=seed,
    )
    tasks, held = load_task_set(run, renderer), load_eval_sets(run, renderer)

    evaluated = sum(map(len, held.values()))
    skipped = len(tasks.skipped) + sum(len(one.skipped) for one in held.values())
    assert len(tasks) + evaluated + skipped == len(texts) + 80
    trained = {tasks.task(int(index), 0).row.get("number") for index in tasks.order(0, 0)}
    tested = {one.task(i, -1).row.get("number") for one in held.values() for i in range(len(one))}
    assert trained & tested <= {None}
    assert np.all(np.diff(np.sort(tasks.order(0, 0))) > 0)


def test_a_set_with_held_out_rows_is_opened_and_says_its_form_once(
    write_rows, run_config, renderer, caplog
):
    caplog.set_level(logging.INFO, "rlhf_data")
    run = run_config(train=[write_rows(numbered(20), "sums.jsonl")], eval={"fraction": 0.3})
    opened = OpenedSets()

    tasks = load_task_set(run, renderer, opened=opened)
    held = load_eval_sets(run, renderer, opened=opened)

    assert len(tasks) + len(held["sums"]) == 20
    (said,) = caplog.messages
    assert said.startswith("data: prompts, 2 columns (")
