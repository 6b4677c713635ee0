"""What a run does when a reward misbehaves: the configured policy, and no harm to other groups."""

import json
from pathlib import Path

import pytest
from tests.deadlines import PATIENT_S

from rlhf_guard.rewards.process import WorkerProcess

BAD = """
def score(response, row, uid):
    if row["prompt"].startswith("037"):
        {body}
    return float(len(response))
"""


@pytest.fixture
def bad_reward(workspace):
    def write(body: str) -> list[str]:
        (workspace / "bad.py").write_text(BAD.format(body=body))
        return ["--reward", "bad.py:score", "--data.shuffle", "false"]

    return write


@pytest.mark.parametrize(
    "body", ["raise KeyError('x')", "return None", "return float('nan')", "import sys; sys.exit(3)"]
)
def test_fail_stops_the_run_and_names_the_sample(train, bad_reward, capfd, body):
    train("run", *bad_reward(body), code=1)

    message = capfd.readouterr().err
    assert "0.1." in message  # row 1 of epoch 0
    assert "score" in message


async def hurried(worker, requests, limit_s, *, whole=WorkerProcess.score):
    """Score samples with the bad one, which hangs, in a second, and all others in their time."""
    guilty = any(request.row["prompt"].startswith("037") for request in requests)
    return await whole(worker, requests, 1.0 if guilty else limit_s)


@pytest.mark.parametrize(
    "body",
    [
        "raise KeyError('x')",
        "return None",
        "return float('inf')",
        pytest.param("import time; time.sleep(3600)", marks=pytest.mark.slow),
    ],
)
def test_drop_leaves_the_other_groups_as_they_were(train, monkeypatch, bad_reward, body):
    """Bit for bit: the ledger trains on the same groups as a run whose data lacks the bad row."""
    if "sleep" in body:
        monkeypatch.setattr(WorkerProcess, "score", hurried)
    train(
        "with",
        *bad_reward(body),
        "--reward.score.on_error",
        "drop",
        "--reward.score.timeout_s",
        str(PATIENT_S),
        "--steps",
        "1",
    )

    events = [
        json.loads(line) for line in Path("with/ledger.jsonl").read_text().splitlines() if line
    ]
    trained = next(event["groups"] for event in events if event["event"] == "trained")
    dropped = next(event["groups"] for event in events if event["event"] == "dropped")
    assert list(dropped) == ["0.1"]
    assert list(trained) == ["0.0", "0.2"]


def test_a_write_to_the_rewards_own_channel_follows_on_error(train, workspace, bad_reward):
    every_socket = (
        "import glob, os; [os.write(int(p[14:]), b'[]\\n') for p in glob.glob('/proc/self/fd/*')"
    )
    flags = bad_reward(every_socket + " if 'socket:' in os.path.realpath(p)]")

    train("run", *flags, "--reward.score.on_error", "drop", "--steps", "1")

    assert '"dropped"' in (workspace / "run/ledger.jsonl").read_text()


def test_value_takes_the_place_of_a_failed_score(train, bad_reward):
    metrics = train(
        "run",
        *bad_reward("return None"),
        *["--reward.score.on_error", "value", "--reward.score.error_value", "-5", "--steps", "1"],
    )

    assert metrics[-1]["metrics"]["reward/mean"] < 4
