"""Training tasks and evaluation sets of a run whose environments make tasks."""

from itertools import count

import pytest

from rlhf_core import DataError
from rlhf_data.made import splits
from rlhf_data.made.players import Players
from rlhf_data.made.tasks import MadeTasks
from rlhf_data.tasks import load_eval_sets, load_task_set
from rlhf_testing.errors import has_code


class Makers:
    """Environments as makers of rows: name -> split -> rows; None for one that makes no tasks."""

    def __init__(self, **environments):
        self._environments = environments

    def reader(self, environment, split):
        splits = self._environments[environment]
        return None if splits is None else lambda: splits[split]


QUIZ = [{"key": "sum", "prompt": "1+1=", "answer": "2"}, {"key": "none", "question": "?"}]


def test_rows_of_an_environment_become_tasks_with_prompt_and_name(run_config, renderer):
    makers = Makers(quiz={"train": QUIZ})
    run = run_config(shuffle=False)

    tasks = load_task_set(run, renderer, Players({"quiz": 1.0}), makers)

    assert isinstance(tasks, MadeTasks)
    with_prompt, without = (tasks.task(index, 0) for index in (0, 1))
    assert renderer.decode(with_prompt.prompt_ids) == "1+1="
    assert with_prompt.row == QUIZ[0]
    assert (with_prompt.dataset, with_prompt.environment) == ("quiz", "quiz")
    assert (without.prompt_ids, without.messages, without.row) == ((), (), QUIZ[1])


def test_a_prompt_of_messages_is_rendered_and_kept(run_config, renderer):
    messages = [{"role": "user", "content": "1+1="}]
    makers = Makers(quiz={"train": [{"prompt": messages}]})

    task = load_task_set(run_config(), renderer, Players({"quiz": 1.0}), makers).task(0, 0)

    assert task.messages == tuple(messages)
    assert list(task.prompt_ids) == renderer.render(messages)


@pytest.mark.parametrize(
    ("prompt", "said", "code"),
    [
        ("", "empty", "data/empty"),
        ("x" * 99, "--data.max_prompt_tokens", "data/too-long"),
        (3, "expected text", "data/wrong-type"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_an_error_with_environment_and_task(
    run_config, renderer, prompt, said, code
):
    makers = Makers(quiz={"train": [{"prompt": "fine"}, {"prompt": prompt}]})
    run = run_config(shuffle=False, max_prompt_tokens=9)
    tasks = load_task_set(run, renderer, Players({"quiz": 1.0}), makers)

    with pytest.raises(DataError, match=rf"quiz, task 1: .*{said}", check=has_code(code)):
        tasks.task(1, 0)


def test_several_environments_are_mixed_and_one_that_makes_no_tasks_has_empty_ones(
    run_config, renderer
):
    makers = Makers(quiz={"train": QUIZ}, maze=None)

    tasks = load_task_set(run_config(), renderer, Players({"quiz": 0.5, "maze": 0.5}), makers)

    found = [tasks.task(int(index), 0) for index in tasks.order(0, 0)]
    assert sorted(task.environment for task in found) == ["maze", "maze", "quiz", "quiz"]
    assert all(task.row == {} for task in found if task.environment == "maze")


def test_the_first_rows_can_be_used_alone(run_config, renderer):
    makers = Makers(quiz={"train": [{"key": n} for n in range(9)]})

    tasks = load_task_set(run_config(max_samples=3), renderer, Players({"quiz": 1.0}), makers)

    assert sorted(tasks.task(index, 0).row["key"] for index in range(len(tasks))) == [0, 1, 2]


def test_an_environment_without_tasks_to_train_on_is_an_error(run_config, renderer):
    makers = Makers(quiz={"eval": QUIZ})

    with pytest.raises(
        DataError, match=r"quiz.*'train'.*--data", check=has_code("data/no-training-split")
    ):
        load_task_set(run_config(), renderer, Players({"quiz": 1.0}), makers)


def test_environments_are_evaluated_on_their_own_split_by_name(run_config, renderer):
    makers = Makers(quiz={"eval": QUIZ}, maze=None, cards={"train": QUIZ})
    players = Players({"quiz": 0.4, "maze": 0.3, "cards": 0.3})

    sets = load_eval_sets(run_config(), renderer, players, makers)

    assert list(sets) == ["quiz"]
    assert [sets["quiz"].task(index, -1).row["key"] for index in range(2)] == ["sum", "none"]
    limited = load_eval_sets(run_config(eval={"max_samples": 1}), renderer, players, makers)
    assert len(limited["quiz"]) == 1


def test_evaluation_data_takes_the_place_of_the_environments_tasks(
    run_config, renderer, write_rows
):
    makers, players = Makers(quiz={"eval": QUIZ}), Players({"quiz": 1.0})
    path = write_rows([{"prompt": "a"}])

    with_data = run_config(eval={"data": [f"mine={path}"]})
    assert list(load_eval_sets(with_data, renderer, players, makers)) == ["mine"]
    without = run_config(eval={"environment_split": None})
    assert load_eval_sets(without, renderer, players, makers) == {}


def test_a_generator_is_evaluated_whole_and_an_endless_one_refused(
    run_config, renderer, monkeypatch
):
    monkeypatch.setattr(splits, "MAX_EVALUATED", 20)
    players = Players({"quiz": 1.0})

    class Generators:
        def __init__(self, numbers):
            self.numbers = numbers

        def reader(self, environment, split):
            return lambda: ({"key": number} for number in self.numbers())

    finite = load_eval_sets(run_config(), renderer, players, Generators(lambda: range(20)))
    assert len(finite["quiz"]) == 20
    with pytest.raises(
        DataError,
        match=r"quiz.*20 tasks.*--eval\.max_samples",
        check=has_code("data/too-many-tasks"),
    ):
        load_eval_sets(run_config(), renderer, players, Generators(count))
    limited = run_config(eval={"max_samples": 5})
    assert len(load_eval_sets(limited, renderer, players, Generators(count))["quiz"]) == 5
