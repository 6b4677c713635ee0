"""Spans of runs whose samples have pictures: in prompts, in later turns, and in tasks that an environment draws."""

import json

import pytest
from tests.images import SHOWS, noisy, saved
from tests.plugins.lab.replayed_runs import QUIET, STEPS, digests, go_on, replay_rows, run_command

from rlhf_plugin_lab.replay.command import main
from rlhf_testing.tiny_vision import write_tiny_vision_model

pytestmark = pytest.mark.slow

KINDS = {
    "prompts": "--data rows.jsonl --data.chat --data.image_key images --reward reward.py:score",
    "turns": "--executor multi_turn --env shows.py:Shows --rollout.multi_turn.max_turns 2 --rollout.max_length 200",
    "shapes": "--executor multi_turn --env shapes --rollout.multi_turn.max_turns 2 --rollout.max_length 400 "
    "--algo.loss.entropy_coef 0.1",  # a policy of random weights names no color, and would learn nothing
}
FAST = ["--actor.adam.lr", "0.05"]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    write_tiny_vision_model(
        tmp_path / "model", hidden_size=16, num_heads=2, num_layers=1, vision_layers=1
    )
    rows = []
    for number in range(6):
        picture = noisy(8 + 8 * (number % 3), 16).rotate(90 * number, expand=True)
        (tmp_path / f"{number}.png").write_bytes(saved(picture))
        rows.append({"prompt": f"<image>how many? {number}", "images": [f"{number}.png"]})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "reward.py").write_text(
        "def score(response):\n    return sum(map(ord, response)) % 7\n"
    )
    (tmp_path / "shows.py").write_text(SHOWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", KINDS.values(), ids=KINDS)
def test_a_span_with_pictures_comes_out_to_the_bit_and_with_another_learning_rate(
    workspace, words, capsys
):
    run = workspace / "run"
    run_command(
        [
            "train", "--model", "model", "--model.vision", "vlm", "--output", str(run), "--rollout.batch_size", "2",
            "--rollout.n_samples_per_prompt", "2", "--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "200",
            "--steps", str(STEPS), "--checkpoint.every", "1", "--checkpoint.keep", "10", "--checkpoint.export", "false",
            "--actor.adam.lr", "0.01", *QUIET, *words.split(),
        ]
    )  # fmt: skip
    assert json.loads((run / "samples.jsonl").read_text().splitlines()[-1])["images"]

    assert main([str(run), "--from", "3", "--to", "4"]) == 0
    assert "to the bit at step 3, 4" in capsys.readouterr().err
    rows = replay_rows(run, 3, 4, "--out", str(workspace / "out"), *FAST, capsys=capsys)

    resumed = go_on(run, 2, *FAST, name="resumed")
    assert digests(workspace / "out/changed", 3) == digests(resumed, 3)
    assert digests(workspace / "out/changed", 3) != digests(run, 3)
    # The policy that learned otherwise from the pictures finds other log-probs than the sampler of the same ones.
    assert rows[0]["off_policy_max"] < 1e-5 < rows[1]["off_policy_max"]
