import pytest

pytest.importorskip(
    "reasoning_gym", reason="pip install 'contrib/rlhf-bridge-reasoning-gym[ecosystem]'"
)

from rlhf_bridge_reasoning_gym.config import ReasoningGymConfig
from rlhf_bridge_reasoning_gym.environment import ReasoningGymBridge
from rlhf_core import ConfigError

GENERATORS = (
    "basic_arithmetic", "chain_sum", "leg_counting", "spell_backward", "letter_counting", "number_sorting",
    "base_conversion", "caesar_cipher", "count_bits", "gcd", "lcm", "maze", "n_queens", "palindrome_generation",
    "prime_factorization", "fraction_simplification", "simple_equations", "sudoku", "tower_of_hanoi", "word_sorting",
)  # fmt: skip


@pytest.mark.parametrize("name", GENERATORS)
def test_the_right_answer_scores_more_than_a_wrong_one(played, name):
    made = ReasoningGymBridge(ReasoningGymConfig(dataset=name, size=5))
    entry = made._generator("train")[3]
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
    assert made._generator("train")[0]["question"] != made._generator("eval")[0]["question"]


def test_an_answer_without_the_tag_has_no_score(played):
    made = ReasoningGymBridge(ReasoningGymConfig(dataset="chain_sum", size=5))

    _, (result,) = played(made, ["7"], **made.tasks("train")[0])

    assert result.rewards == {"score": 0.0}
    assert result.metrics == {"answered": 0.0, "right": 0.0, "scorer_raised": 0.0}


@pytest.mark.parametrize(
    "options", [{"dataset": "no_such"}, {"dataset": "chain_sum", "kwargs": {"terms": 3}}]
)
def test_options_that_do_not_fit_are_refused(options):
    with pytest.raises(ConfigError, match="expected a generator of reasoning-gym"):
        ReasoningGymBridge(ReasoningGymConfig(**options)).tasks("train")
