"""Commands that read prompts: the form is said, rewards get the whole row, and rows of other commands are refused."""

import pytest

from rlhf_config.run import PromptData
from rlhf_core.errors import DataError
from rlhf_data.reading_log import shown_forms
from rlhf_data.responses import load_responses
from rlhf_data.tasks import load_prompts, load_task_set
from rlhf_testing.errors import has_code

SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho."}]}
ASKED = {"role": "user", "content": "Hi"}


def test_a_task_has_the_prompt_of_its_form_and_the_whole_row(write_rows, run_config, renderer):
    row = {"messages": [ASKED], "answer": "Ho."}

    tasks = load_task_set(run_config(train=[write_rows([row])]), renderer)

    task = tasks.task(0, 0)
    assert task.messages == (ASKED,)
    assert renderer.decode(task.prompt_ids) == "user:Hi\nassistant:"
    assert task.row == {**row, "prompt": [ASKED]}


def test_prompts_of_conversations_are_taken_where_the_form_is_named(write_rows, renderer, capsys):
    path = write_rows([SHAREGPT])
    with pytest.raises(
        DataError, match="ShareGPT conversations", check=has_code("data/other-form")
    ):
        load_prompts(PromptData(train=(path,)), renderer)

    with shown_forms():
        prompts = load_prompts(PromptData(train=(path,), form="sharegpt"), renderer)

    assert prompts.task(0, 0).messages == (ASKED,)
    assert capsys.readouterr().err == f"data: ShareGPT conversations, 1 column ({path})\n"


def test_responses_of_a_supervised_term_may_be_completions(write_rows, run_config, renderer):
    run = run_config()
    row = {"prompt": "a", "completion": "b"}

    def load(rows):
        supervised = run.supervised.model_copy(update={"data": (write_rows(rows),)})
        return load_responses(run.model_copy(update={"supervised": supervised}), renderer, eos=2)

    assert renderer.decode(load([row]).token_ids[:2].tolist()) == "ab"
    with pytest.raises(DataError, match="preference pairs", check=has_code("data/other-form")):
        load([{"prompt": "a", "chosen": "b", "rejected": "c"}])
