"""The tables of docs/doctor.md, reduced: faults are found, and healthy runs are not blamed."""

import pytest
from benchmarks.diagnoses import Bench, fault_table, healthy_table
from benchmarks.diagnoses_runs import Job, Seen, has_learned
from tests.cases import one_in
from tests.plugins.lab.run_folders import sample, write_lines

LONG = 3600.0
NAMED = {
    "reverse": "advantages_flipped_with_tokens",
    "sorting": "weights_not_delivered_at_a_low_rate",
    "shapes": "constant_reward",
}


def test_tables_count_what_was_found_otherwise_and_missed():
    def fault(seed, *found):
        return Seen(job=Job("fault", "sorting", "constant_reward", seed), found=found)

    faults = [fault(1, "dead_reward"), fault(2, "entropy_gone"), fault(3)]
    healthy = [
        Seen(job=Job("healthy", "shapes", "healthy", 1), has_learned=True, looks=4),
        Seen(job=Job("healthy", "shapes", "healthy", 2), found=("cut_off",), looks=4),
        Seen(job=Job("healthy", "shapes", "healthy", 3), refused="rollout.top_p"),
    ]

    assert (
        "| constant_reward | - | 1 of 3, +1 | - | dead_reward 1, entropy_gone 1 |"
        in fault_table(faults)
    )
    assert "| shapes | 1 | 0 |  |  | 1 | 1 | cut_off 1 | 1 | 8 |" in healthy_table(healthy)


@pytest.mark.parametrize(
    ("held_out", "is_healthy"),
    [
        ([1.0, 0.9, 0.9, 1.0, 0.96], True),
        ([1.0, 0.9, 0.5, 0.5, 1.0], False),
        ([1.0, 1.0, 1.0, 1.0, 0.9], False),
    ],
)
def test_a_task_that_stays_solved_counts_as_healthy(tmp_path, held_out, is_healthy):
    """One good evaluation after bad ones does not; 0.95 is the highest reward less 5 % of the range."""
    metrics = [
        {"reward/mean": 1.0 - 0.01 * (step > 20), "reward/std": 0.1} for step in range(1, 41)
    ]
    for at, value in zip((1, 10, 20, 30, 40), held_out, strict=True):
        metrics[at - 1]["eval/held_out/T0/reward"] = value
    lines = [{"step": step, "metrics": each} for step, each in enumerate(metrics, 1)]
    write_lines(tmp_path / "metrics.jsonl", lines)
    write_lines(tmp_path / "samples.jsonl", [sample(reward=reward) for reward in (0.0, 1.0)])

    assert has_learned(tmp_path) == is_healthy


@pytest.mark.slow
@pytest.mark.parametrize("task", one_in(3, NAMED))
def test_planted_faults_are_found(tmp_path, task):
    job = Job("fault", task, NAMED[task], 1)

    (seen,) = Bench(tmp_path, 1, LONG).run([job], [task], 1)

    assert seen.outcome == "found", seen


@pytest.mark.slow
@pytest.mark.parametrize("task", one_in(2, ["reverse", "sorting"]))
def test_healthy_runs_are_not_blamed(tmp_path, task):
    (seen,) = Bench(tmp_path, 1, LONG).run([Job("healthy", task, "healthy", 1)], [task], 1)

    assert (seen.has_learned, seen.found) == (True, ()), seen
