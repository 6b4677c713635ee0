"""Runs that go on with the adapter of an earlier one, as a user starts them, and their reference."""

import json
import math
import os
import shutil

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main

from .forked_runs import (
    QUIET,
    metrics_without_times,
    records,
    train_in_a_fork,
    write_workspace,
)
from .test_adapters import files_digest
from .test_dpo import PAIRS, naive_loss

pytestmark = pytest.mark.slow

GOES_ON = ("--actor.adapter", "lora", "--actor.lora.init_from", "first/model")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with a run ``first``, which trained an adapter of rank 4 on chats."""
    workspace = write_workspace(tmp_path_factory.mktemp("going_on"))
    sums = [{"prompt": f"{a}+{b}=", "response": f"{a + b:02d}"} for a in range(4) for b in range(4)]
    (workspace / "sums.jsonl").write_text("\n".join(map(json.dumps, sums)) + "\n")
    (workspace / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)) + "\n")
    words = ["sft", "--model", "model", "--data", "sums.jsonl", *QUIET, "--train.batch_size", "8"]
    adapter = ["--actor.adapter", "lora", "--actor.lora.rank", "4", "--actor.adam.lr", "1e-2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        assert main([*words, *adapter, "--output", "first"]) == 0
    return workspace


@pytest.fixture(autouse=True)
def there(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


def test_preferences_are_learned_against_the_adapter_as_it_began(workspace):
    words = [
        *("dpo", "--model", "model", "--data", "pairs.jsonl", *QUIET, "--train.batch_size", "16"),
        *(*GOES_ON, "--actor.warmup_ratio", "0", "--actor.adam.lr", "1e-2"),
        *("--preference.dpo.beta", "0.3"),
    ]
    for steps in ("1", "2"):
        assert main([*words, "--steps", steps, "--output", f"dpo{steps}"]) == 0
    first, second = records(workspace / "dpo2", "metrics")

    def adapted(folder):
        base = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
        return PeftModel.from_pretrained(base, folder)

    expected = naive_loss(adapted("dpo1/model"), adapted("first/model"), PAIRS, 0.3).item()
    assert first["loss/preference"] == pytest.approx(math.log(2), abs=1e-6)
    assert second["loss/preference"] == pytest.approx(expected, abs=1e-5)
    assert second["loss/preference"] < math.log(2) - 1e-3


def test_reinforcement_learning_begins_at_a_divergence_of_zero_and_is_resumed_to_the_bit(workspace):
    words = [*GOES_ON, "--steps", "6"]
    assert train_in_a_fork(workspace, "whole", *words) == 0, (workspace / "whole.log").read_text()
    divergences = [line["kl/ref"] for line in records(workspace / "whole", "metrics")]
    assert divergences[0] == 0.0
    assert max(map(abs, divergences)) > 1e-6

    killed = train_in_a_fork(workspace, "cut", *words, fault="train:5")
    assert os.WIFSIGNALED(killed), (workspace / "cut.log").read_text()
    assert train_in_a_fork(workspace, "cut", *words, "--resume", "auto") == 0
    assert metrics_without_times(workspace / "cut") == metrics_without_times(workspace / "whole")
    assert files_digest(workspace / "cut") == files_digest(workspace / "whole")


def test_the_reference_may_be_the_base_or_the_folder_itself(workspace):
    found = {}
    for name, path in (("base", "model"), ("folder", "first/model")):
        words = ["--steps", "1", "--ref.path", path]
        code = train_in_a_fork(workspace, f"ref-{name}", *GOES_ON, *words)
        assert code == 0, (workspace / f"ref-{name}.log").read_text()
        found[name] = records(workspace / f"ref-{name}", "metrics")[0]["kl/ref"]

    assert abs(found["base"]) > 1e-4
    assert abs(found["folder"]) < 1e-6


def test_a_folder_that_has_changed_is_noticed_on_resume(workspace, capsys):
    shutil.copytree("first/model", "other", dirs_exist_ok=True)
    words = ["--actor.adapter", "lora", "--actor.lora.init_from", "other", "--output", "changed"]
    command = ["train", "-c", "run.toml", *words, *QUIET, "--checkpoint.every", "1"]
    assert main([*command, "--steps", "1"]) == 0
    (workspace / "other" / "note.txt").write_text("new\n")

    assert main([*command, "--steps", "2", "--resume", "auto", "--resume.strict"]) == 2

    assert "actor.lora other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*GOES_ON, "--actor.lora.rank", "8"], "Leave rank out"),
        ([*GOES_ON[:3], "model"], "it has no adapter_config.json"),
        (["--model", "first/model"], "first/model as the option init_from"),
    ],
)
@pytest.mark.parametrize("way", [(), ("--check",)])
def test_what_cannot_go_on_is_refused_with_exit_code_2(capsys, words, message, way):
    assert main(["train", "-c", "run.toml", "--output", "bad", *words, *way]) == 2

    assert message in capsys.readouterr().err


def test_the_plan_names_the_reference(capsys):
    assert main(["train", "-c", "run.toml", *GOES_ON, "--dry-run"]) == 0

    assert "the adapter first/model" in capsys.readouterr().out
