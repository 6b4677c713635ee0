"""Tokens that a run records beside its samples: their columns, and that recording changes nothing of the run."""

import json
import math
import re
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch
from transformers import AutoModelForCausalLM


def test_tokens_are_recorded_with_what_the_step_computed_and_the_run_stays_as_it_is(train):
    flags = ["--reward", "my_reward.py:score", "--log.samples", "99"]
    flags += ["--algo.loss.old_logprobs", "recompute"]
    plain = train("plain", *flags)
    watched = train("watched", *flags, "--observers.use", "token_files")

    assert [line.get("metrics") for line in watched] == [line.get("metrics") for line in plain]
    samples = Path("watched/samples.jsonl").read_text()
    assert samples == Path("plain/samples.jsonl").read_text()
    rows = parquet.read_table("watched/tokens/step-00000002.parquet").to_pylist()
    recorded = [sample for sample in map(json.loads, samples.splitlines()) if sample["step"] == 2]
    assert {row["uid"] for row in rows} == {sample["uid"] for sample in recorded}
    for row in rows:
        assert (row["rollout_logprob"] is None) is not row["action"]
        if row["action"]:
            assert abs(row["rollout_logprob"] - row["trainer_logprob"]) < 1e-4
            assert row["version"] == 1
            assert row["entropy"] > 0.0
    for sample in recorded:
        text = "".join(row["text"] for row in rows if row["uid"] == sample["uid"])
        assert re.sub(r"<\w+>", "", text) == sample["prompt"] + sample["response"]
    assert not Path("plain/tokens").exists()


def recorded_actions(step):
    rows = parquet.read_table(f"run/tokens/step-{step:08d}.parquet").to_pylist()
    return [row for row in rows if row["action"]]


RECORDED = ("--log.samples", "99", "--observers.use", "token_files")


def test_the_losses_of_tokens_are_those_of_the_update(train):
    lines = train("run", "--reward", "my_reward.py:score", *RECORDED)

    metrics = [line["metrics"] for line in lines if "metrics" in line]
    for step, values in enumerate(metrics, start=1):
        actions = recorded_actions(step)
        losses = [row["loss"] for row in actions]
        # At ratios of 1, and with float32 of the file.
        assert losses == pytest.approx([-row["advantage"] for row in actions], abs=1e-6)
        assert math.fsum(losses) / len(losses) == pytest.approx(values["loss/policy"], abs=1e-5)
        assert {row["clipped"] for row in actions} == {0.0}


def test_clipped_tokens_are_as_many_as_the_last_update_counted(train):
    """Two updates of the whole batch: none is clipped in the first, so that the mean of both is half of the last."""
    moving = ("--train.inner_epochs", "2", "--actor.adam.lr", "0.05", "--actor.max_norm", "100")
    train("plain", "--reward", "my_reward.py:score", *moving, "--steps", "2")
    lines = train("run", "--reward", "my_reward.py:score", *moving, "--steps", "2", *RECORDED)

    metrics = [line["metrics"] for line in lines if "metrics" in line]
    written = map(json.loads, Path("plain/metrics.jsonl").read_text().splitlines())
    assert [line["metrics"] for line in written if "metrics" in line] == metrics
    shares = []
    for step, values in enumerate(metrics, start=1):
        clipped = [row["clipped"] for row in recorded_actions(step)]
        for name, side in (("clip/fraction_low", -1.0), ("clip/fraction_high", 1.0)):
            shares.append(clipped.count(side) / len(clipped))
            assert shares[-1] == pytest.approx(2 * values[name], abs=1e-6)
    assert max(shares) > 0.0


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--rollout.temperature", "0.7"], id="of the update's own pass"),
        pytest.param(
            ["--rollout.temperature", "0.7", "--algo.loss.old_logprobs", "recompute"],
            id="of the pass before the updates",
        ),
    ],
)
def test_a_recorded_entropy_is_that_of_a_plain_forward(train, flags):
    """Of step 1, whose weights are those of the model's folder."""
    train("run", *flags, "--steps", "1", "--log.samples", "99", "--observers.use", "token_files")

    rows = parquet.read_table("run/tokens/step-00000001.parquet").to_pylist()
    plain = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    uids = list(dict.fromkeys(row["uid"] for row in rows))
    assert len(uids) == 12
    for uid in uids:
        own = [row for row in rows if row["uid"] == uid]
        with torch.no_grad():
            logits = plain(torch.tensor([[row["token_id"] for row in own]])).logits[0]
        logprobs = (logits / 0.7).log_softmax(-1)  # (T, V)
        entropies = -(logprobs.exp() * logprobs).sum(-1).roll(1)  # of what stands before a token
        for row, expected in zip(own, entropies.tolist(), strict=True):
            if row["action"]:
                assert row["entropy"] == pytest.approx(expected, abs=1e-5)
            else:
                assert row["entropy"] is None
