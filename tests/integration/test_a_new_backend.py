"""The backend of ``rlhf new plugin`` trains with whichever loss a run names, as the torch backend does."""

import json
import os
import subprocess
import sys

import pytest
from tests.cases import one_in

from rlhf_cli.new import write_package

MODULE = "rlhf_plugin_my_backend"
TEACHER = ["--algo.teacher.path", "{teacher}", "--loss", "distill"]
OBJECTIVES = {
    "ppo": [],
    "gspo": ["--estimator", "group_norm", "--loss", "gspo"],
    "cispo_of_sequences": ["--loss", "cispo", "--algo.loss.aggregation", "seq-mean-token-mean"],
    "masked": ["--algo.correction.kind", "mis"],
    "truncated_weights": ["--algo.correction.kind", "tis"],
    "kl_k2": ["--algo.kl.mode", "loss", "--algo.kl.estimator", "k2", "--algo.kl.coef", "0.05"],
    "entropy": ["--algo.loss.entropy_coef", "0.2"],
    "critic": ["--estimator", "gae"],
    "teacher": [*TEACHER, "--algo.loss.distill.divergence", "top_k", "--algo.teacher.top_k", "16"],
    "supervised": ["--algo.terms.use", "sft", "--supervised.data", "good.jsonl"],
}
COMPARED = ("grad_norm", "loss/", "critic/", "distill/", "policy/", "kl/", "mismatch/k3")
ROUNDING = 1e-5
"""Of float32: packed attention and one row at a time add up in another order."""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The generated package is found as one that is installed without an entry point."""
    source = write_package("my-backend", "train_backend", tmp_path / "packages") / "src"
    monkeypatch.syspath_prepend(source)
    monkeypatch.setenv("PYTHONPATH", str(source))
    monkeypatch.setenv("RLHF_PLUGINS", MODULE)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_its_first_step_is_that_of_the_torch_backend(
    train, workspace, teacher, installed, objective
):
    rows = [{"prompt": f"{n:03d}=", "response": f"{n:03d}"} for n in range(0, 999, 53)]
    (workspace / "good.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    flags = [flag.format(teacher=teacher) for flag in OBJECTIVES[objective]]
    flags += ["--reward", "vary.py:vary", "--steps", "1", "--model.dtype", "float32"]

    ours = first_step(train("torch", *flags))
    theirs = first_step(train("mine", *flags, "--backend", "my_backend"))

    compared = [name for name in ours if any(part in name for part in COMPARED)]
    assert "policy/grad_norm" in compared
    assert {name: theirs[name] for name in compared} == pytest.approx(
        {name: ours[name] for name in compared}, rel=ROUNDING, abs=ROUNDING
    )
    assert ours["policy/grad_norm"] > 0


def first_step(lines):
    return next(line["metrics"] for line in lines if "metrics" in line)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("objective", one_in(3, ["ppo", "gspo", "critic"]))
def test_it_learns_the_quickstart(learn, installed, objective):
    """A quarter of the quickstart's samples for 60 steps: the reward rises from 0.3 of 6."""
    flags = [*OBJECTIVES[objective], "--backend", "my_backend", "--train.steps", "60"]
    flags += ["--rollout.batch_size", "8", "--eval.every", "0"]
    flags += ["--algo.loss.entropy_coef", "0"]

    lines = [line for line in learn(*flags) if "metrics" in line]

    rewards = [line["metrics"]["reward/mean"] for line in lines]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    print(f"{objective}: {first:.2f} -> {last:.2f}")
    assert last > first + 0.3


@pytest.mark.slow
def test_rlhf_check_finds_every_promise_kept(installed):
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli.main", "check", "my_backend", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "check_a_step_is_the_plain_gradient" in done.stdout
