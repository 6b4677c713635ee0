"""``rlhf train`` with each model in a process of its own: the same numbers as in one process."""

import json

import pytest

from rlhf_testing.tiny import write_tiny_model

pytestmark = [pytest.mark.scale, pytest.mark.slow]

REWARD = """
def score(response):
    return sum(map(ord, response)) % 7
"""


@pytest.fixture
def train(tmp_path, monkeypatch, cluster):
    """Runs ``rlhf train`` in a folder with a model, prompts and a reward; returns the lines of metrics.jsonl."""
    from rlhf_cli.main import main

    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}="} for n in range(0, 999, 37)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "vary.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)

    def run(output, *flags, code=0):
        common = ["--model", "model", "--data", "mine.jsonl", "--output", output]
        small = ["--rollout.batch_size", "3", "--rollout.n_samples_per_prompt", "4"]
        small += ["--rollout.max_new_tokens", "6", "--data.max_prompt_tokens", "8"]
        small += ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
        small += ["--reward", "vary.py:score"]
        assert main(["train", *common, *small, *flags]) == code
        lines = (tmp_path / output / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return run


def metrics_of(lines):
    return [line["metrics"] for line in lines if "metrics" in line]


RUNS = {
    "one update": ["--steps", "3"],
    "critic, reference, several updates": [
        *("--estimator", "gae", "--algo.kl.coef", "0.05", "--algo.kl.mode", "reward"),
        *("--steps", "2", "--train.inner_epochs", "2"),
    ],
}


@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
def test_a_run_has_the_metrics_of_one_in_one_process(train, flags):
    here = train("local", *flags, "--runtime.local.threads", "1")
    there = train("ray", *flags, "--runtime", "ray")

    assert metrics_of(there) == metrics_of(here)
    assert metrics_of(here)


def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been(train):
    flags = ["--runtime", "ray", "--checkpoint.every", "2"]
    whole = train("whole", *flags, "--steps", "4")

    train("parts", *flags, "--steps", "2", "--actor.lr_schedule", "constant")
    resumed = train("parts", *flags, "--steps", "4", "--resume", "auto")

    assert metrics_of(resumed) == metrics_of(whole)


def test_an_observer_ends_a_run_that_goes_on_from_its_state_as_in_one_process(train):
    """The first value stays the best, so the run ends at the third one after it, the fourth step."""
    stops = ("--observers.use", "early_stop", "--observers.early_stop.patience", "3")
    flags = [*stops, "--observers.early_stop.min_delta", "1000", "--checkpoint.every", "2"]
    here = train("local", *flags, "--steps", "6", "--runtime.local.threads", "1")

    # Without its state it would count anew from the third step on.
    train("ray", *flags, "--steps", "2", "--runtime", "ray")
    there = train("ray", *flags, "--steps", "6", "--runtime", "ray", "--resume", "auto")

    assert len(metrics_of(there)) == 4
    assert metrics_of(there) == metrics_of(here)
    assert [line["end"] for line in there if "end" in line] == [
        line["end"] for line in here if "end" in line
    ]
    assert "has not become better for 3 values" in there[-1]["end"]


def test_split_placement_and_two_engines_change_nothing(train):
    here = train("local", "--steps", "2", "--runtime.local.threads", "1")
    there = train(
        "ray",
        *("--steps", "2", "--runtime", "ray", "--runtime.ray.engines", "2"),
        *("--runtime.ray.colocate", "policy+engine", "--runtime.ray.cpus_per.engine", "0.5"),
    )

    assert metrics_of(there) == metrics_of(here)


@pytest.mark.parametrize(
    ("flags", "rewards"),
    list(zip(RUNS.values(), ["workers", "driver"], strict=True)),
    ids=RUNS,
)
def test_workers_and_a_learner_change_nothing_and_the_driver_sees_no_tokens(
    train, tmp_path, monkeypatch, flags, rewards
):
    from rlhf_plugin_ray.batches.stored_tokens import StoredBlock

    workers = ["--runtime.ray.rollout_workers", "2", "--runtime.ray.cpus_per.rollout", "0.5"]
    workers += ["--runtime.ray.rewards", rewards]
    flags = [*flags, "--log.samples", "0"]
    here = train("local", *flags, "--runtime.local.threads", "1")
    reads = []
    monkeypatch.setattr(StoredBlock, "read", lambda block: reads.append(block))
    there = train("ray", *flags, "--runtime", "ray", *workers)

    assert reads == []
    assert metrics_of(there) == metrics_of(here)
    # Lines of one step may come in another order.
    ledgers = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("local", "ray")]
    assert sorted(ledgers[0].splitlines()) == sorted(ledgers[1].splitlines())


def test_options_that_contradict_the_run_end_it_with_exit_code_2(train, capsys):
    with pytest.raises(FileNotFoundError):
        train("ray", "--steps", "2", "--runtime", "ray", "--runtime.ray.ranks.critic", "2", code=2)

    assert "runtime.ray.ranks" in capsys.readouterr().err
