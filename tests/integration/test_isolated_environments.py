"""A run is the same wherever its environments run."""

import json
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_left")]

MULTI_TURN = ("--executor", "multi_turn", "--env", "echo_after_hint", "--rollout.max_length", "32")


def trained_on(run):
    """What was sampled and earned, and what the policy learned from it."""
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    return rows, [
        {
            name: value
            for name, value in json.loads(line).items()
            if name.startswith(("loss", "rollout/"))
        }
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]


def test_where_an_environment_runs_changes_no_bit(train, workspace):
    train("here", *MULTI_TURN)
    train("process", *MULTI_TURN, *("--env.echo_after_hint.isolation", "process"))
    train(
        "venv",
        *MULTI_TURN[:2],
        *("--env", "elsewhere=external", "--rollout.max_length", "32"),
        *("--env.elsewhere.name", "echo_after_hint", "--env.elsewhere.options.num_digits", "4"),
        *("--env.elsewhere.isolation", "venv", "--env.elsewhere.python", sys.executable),
    )

    here, process, venv = (trained_on(workspace / name) for name in ("here", "process", "venv"))
    assert here[0]
    assert process == here
    assert venv[1] == here[1]


def test_an_environment_that_has_no_place_is_a_mistake_of_the_user(train, capsys):
    train("run", *MULTI_TURN, "--env.echo_after_hint.isolation", "venv", code=2)
    assert (
        "expected python, an interpreter or the folder of a virtual environment"
        in capsys.readouterr().err
    )

    external = ("--env", "external", "--env.external.name", "x", "--rollout.max_length", "32")
    train("run", *MULTI_TURN[:2], *external, code=2)
    assert (
        "this process does not have x.\n  Say where it runs: --env.external"
        in capsys.readouterr().err
    )
