"""What a run says of how it was put together: on the console at its start, and in ``run.log``."""

import importlib.util

import pytest

GROUPS = {
    "adam": ["decay", "no_decay"],
    "sgd": ["decay", "no_decay"],
    "muon": ["muon", "adam_decay", "adam_no_decay"],
    "adam8bit": ["decay", "no_decay"],
}
SMALL = (
    *("--model", "model", "--data", "mine.jsonl", "--reward", "my_reward.py:score"),
    *("--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "4", "--log.progress", "plain", "--output", "run"),
)
HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None


@pytest.mark.parametrize("name", GROUPS)
def test_the_log_names_and_lists_the_parameter_groups_of_every_optimizer(train, workspace, name):
    if name == "adam8bit" and not HAS_BITSANDBYTES:
        pytest.skip("needs bitsandbytes")

    train("run", "--optim", name)

    lines = (workspace / "run/run.log").read_text().splitlines()
    found = [line.partition("optimizer of the policy, group ")[2] for line in lines]
    listed = [line for line in found if line]
    assert [line.split()[0] for line in listed] == GROUPS[name]
    assert "model.norm.weight" in listed[-1]
    assert "model.embed_tokens.weight" in "".join(listed)
    # Norms of the tiny model: two in the layer, two in its attention, and the last one.
    assert "(5 parameters, " in listed[-1]


@pytest.mark.slow
def test_a_critic_has_groups_of_its_own(train, workspace):
    train("run", "--estimator", "gae", "--critic.optim", "muon")

    text = (workspace / "run/run.log").read_text()
    assert "optimizer of the policy, group decay (" in text
    assert "optimizer of the critic, group muon (" in text


def test_the_groups_are_on_the_console_before_the_first_step(workspace, capsys):
    from rlhf_cli.main import main

    assert main(["train", *SMALL, "--steps", "1", "--optim", "muon"]) == 0

    lines = capsys.readouterr().out.splitlines()
    groups = [index for index, line in enumerate(lines) if ", group " in line]
    steps = [index for index, line in enumerate(lines) if line.startswith("step ")]
    assert len(groups) == 3
    assert groups[-1] < steps[0]


def test_a_silent_run_still_has_its_log(train, workspace, capsys):
    train("run", "--log.summary", "false")

    assert capsys.readouterr().out == ""
    assert "group decay (" in (workspace / "run/run.log").read_text()


def test_the_log_says_when_checkpoints_are_written_and_what_a_step_that_fails_costs(
    workspace, capsys
):
    from rlhf_cli.main import main

    flags = [*SMALL, "--steps", "2", "--checkpoint.undo_gib", "0.00001"]
    assert main(["train", *flags]) == 0

    text = (workspace / "run/run.log").read_text()
    checkpoints = "checkpoints every 10 minutes, at the end, when the run is stopped or fails; the newest 2 are kept"
    too_large = "the policy is not copied before a step: "
    assert text.count(checkpoints) == 1
    assert text.count(too_large) == 1
    assert "checkpoint.undo_gib is 1e-05" in text
    printed = capsys.readouterr()
    assert checkpoints not in printed.out + printed.err
    assert too_large not in printed.out + printed.err


def test_a_resumed_run_goes_on_in_the_same_log(train, workspace):
    train("run", "--steps", "1")
    train("run", "--steps", "2", "--resume", "auto")

    text = (workspace / "run/run.log").read_text()
    assert text.count("group no_decay (") == 2
    assert "resuming with changed options" in text


def test_a_truncated_distribution_is_warned_of_once(train, workspace):
    train("truncated", "--rollout.top_p", "0.8")
    train("whole")

    warnings = [
        line
        for line in (workspace / "truncated/run.log").read_text().splitlines()
        if "WARNING" in line and "truncated distribution" in line
    ]
    assert len(warnings) == 1
    assert "--rollout.top_p 0.8" in warnings[0]
    assert "truncated distribution" not in (workspace / "whole/run.log").read_text()
