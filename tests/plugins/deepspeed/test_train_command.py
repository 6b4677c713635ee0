"""``rlhf train`` with this backend alone in a process: the same run as with the torch backend."""

import json

import pytest

from rlhf_testing.tiny import write_tiny_model

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("deepspeed")

REWARD = """
def score(response):
    return sum(map(ord, response)) % 7
"""
RUNS = {
    "policy": [],
    "critic and reference": ["--estimator", "gae", "--algo.kl.coef", "0.05"],
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs ``rlhf train`` in a folder with a model, prompts and a reward; returns the metrics of each step."""
    from rlhf_cli.main import main

    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}="} for n in range(0, 999, 37)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "vary.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)

    def run(output, *flags):
        common = ["--model", "model", "--data", "mine.jsonl", "--output", output]
        small = ["--rollout.batch_size", "3", "--rollout.n_samples_per_prompt", "4"]
        small += ["--rollout.max_new_tokens", "6", "--data.max_prompt_tokens", "8"]
        small += ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
        small += ["--reward", "vary.py:score", "--steps", "3", "--train.inner_epochs", "2"]
        small += ["--runtime.local.threads", "1", "--actor.adam.lr", "1e-3"]
        assert main(["train", *common, *small, *flags]) == 0
        lines = (tmp_path / output / "metrics.jsonl").read_text().splitlines()
        return [line["metrics"] for line in map(json.loads, lines) if "metrics" in line]

    return run


@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_a_run_has_the_metrics_of_the_torch_backend(train, flags, stage):
    torch_run = train("torch", *flags)

    run = train(
        "deepspeed", *flags, "--backend", "deepspeed", "--backend.deepspeed.zero_stage", stage
    )

    for found, expected in zip(run, torch_run, strict=True):
        learned = {name: value for name, value in expected.items() if "/" in name}
        learned = {k: v for k, v in learned.items() if not k.startswith(("time/", "perf/"))}
        assert learned
        assert {name: found[name] for name in learned} == pytest.approx(learned, abs=1e-4, rel=1e-4)
