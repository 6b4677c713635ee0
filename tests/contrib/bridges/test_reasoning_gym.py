import asyncio

import pytest

from rlhf_core.contracts import Task, Uid

pytest.importorskip(
    "reasoning_gym", reason="pip install 'contrib/rlhf-bridge-reasoning-gym[ecosystem]'"
)

from rlhf_bridge_reasoning_gym.config import ReasoningGymConfig
from rlhf_bridge_reasoning_gym.environment import ReasoningGymBridge, is_evaluated
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

GENERATORS = (
    "basic_arithmetic", "chain_sum", "leg_counting", "spell_backward", "letter_counting", "number_sorting",
    "base_conversion", "caesar_cipher", "count_bits", "gcd", "lcm", "maze", "n_queens", "palindrome_generation",
    "prime_factorization", "fraction_simplification", "simple_equations", "sudoku", "tower_of_hanoi", "word_sorting",
)  # fmt: skip


@pytest.mark.parametrize("name", GENERATORS)
def test_the_right_answer_scores_more_than_a_wrong_one(played, name):
    made = ReasoningGymBridge(ReasoningGymConfig(dataset=name, size=5))
    entry = made._drawn("train", 3).entry
    right = entry["answer"]
    if right is None:  # Any right answer counts, and the example stands in the metadata.
        right = str(
            (
                entry["metadata"].get("solutions")
                or entry["metadata"].get("example_solution")
                or [""]
            )[0]
        )

    seen, (result,) = played(made, [f"so <answer>{right}</answer>"], **made.tasks("train")[3])
    _, (wrong,) = played(made, ["<answer>no idea</answer>"], **made.tasks("train")[3])

    assert entry["question"] in seen.messages[0]["content"]
    assert result.done
    assert result.rewards["score"] > wrong.rewards["score"]
    assert 0.0 <= wrong.rewards["score"] < result.rewards["score"] <= 1.0


def test_tasks_are_rows_by_index_and_splits_differ():
    made = ReasoningGymBridge(ReasoningGymConfig(dataset="chain_sum", size=10**6, eval_size=3))

    assert len(made.tasks("train")) == 10**6
    assert made.tasks("eval")[2] == {"key": "eval-2", "split": "eval", "index": 2}
    with pytest.raises(KeyError):
        made.tasks("test")


NINE = (
    "chain_sum", "leg_counting", "spell_backward", "letter_counting", "number_sorting", "gcd", "coin_flip",
    "gsm_symbolic", "list_functions",
)  # fmt: skip


async def _asked(environment, split):
    """What the policy reads in each task of a split."""
    read = []
    for number, row in enumerate(environment.tasks(split)):
        seen = await environment.reset(Task(uid=Uid(0, number), row=row), number)
        read.append(seen.messages[0]["content"])
    return read


@pytest.mark.parametrize("name", NINE)
def test_no_question_is_trained_and_evaluated_on(name):
    """reasoning-gym draws question i from seed + i, and some generators know few questions at all."""
    made = ReasoningGymBridge(ReasoningGymConfig(dataset=name, size=200, eval_size=40, seed=1))

    trained, evaluated = (asyncio.run(_asked(made, split)) for split in ("train", "eval"))

    assert len(evaluated) == 40
    assert len(set(evaluated)) > 20 or name == "coin_flip"  # which knows some hundred questions
    assert not set(trained) & set(evaluated)


def test_a_question_is_the_same_each_time(played):
    config = ReasoningGymConfig(dataset="chain_sum", size=50, eval_size=5)

    for split in ("train", "eval"):
        first, again = (asyncio.run(_asked(ReasoningGymBridge(config), split)) for _ in range(2))
        assert first == again


def test_a_generator_with_one_question_is_refused():
    made = ReasoningGymBridge(
        ReasoningGymConfig(
            dataset="count_bits", size=3, eval_size=3, kwargs={"min_n": 7, "max_n": 7}
        )
    )

    split = "train" if is_evaluated(made._generator("train")[0]["question"]) else "eval"
    with pytest.raises(
        ConfigError, match="knows so few", check=has_code("environment/not-loadable")
    ):
        asyncio.run(_asked(made, split))


def test_an_answer_without_the_tag_has_no_score(played):
    made = ReasoningGymBridge(ReasoningGymConfig(dataset="chain_sum", size=5))

    _, (result,) = played(made, ["7"], **made.tasks("train")[0])

    assert result.rewards == {"score": 0.0}
    assert result.metrics == {"answered": 0.0, "right": 0.0, "scorer_raised": 0.0}


@pytest.mark.parametrize(
    "options", [{"dataset": "no_such"}, {"dataset": "chain_sum", "kwargs": {"terms": 3}}]
)
def test_options_that_do_not_fit_are_refused(options):
    with pytest.raises(
        ConfigError,
        match="expected a generator of reasoning-gym",
        check=has_code("environment/not-loadable"),
    ):
        ReasoningGymBridge(ReasoningGymConfig(**options)).tasks("train")
