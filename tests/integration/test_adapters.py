"""Runs under adapters, as a user starts them: their reference, their files, a kill, and what is refused."""

import hashlib
import json
import math
import os
import shutil
import signal

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import (
    QUIET,
    how_to_resume,
    metrics_without_times,
    records,
    run_in_a_fork,
    seen_and_new,
    train_in_a_fork,
    write_workspace,
)
from .test_dpo import PAIRS, naive_loss

pytestmark = pytest.mark.slow

OF_POLICY = ("--actor.adapter", "lora", "--actor.lora.rank", "4", "--actor.lora.dropout", "0.1")
OF_CRITIC = ("--critic.adapter", "lora", "--critic.lora.rank", "2")
ADAPTED = (*OF_POLICY, *OF_CRITIC)


def files_digest(run):
    """Digest of the exported adapter, and of its average where there is one."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.glob("model*/adapter_model.safetensors"))
    }


def state_digest(run):
    """Digest of the last checkpoint's tensors of policy and critic."""
    *_, last = sorted((run / "checkpoints").iterdir())
    return {
        str(path.relative_to(last)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(last.rglob("*.safetensors"))
    }


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return write_workspace(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def uninterrupted(workspace):
    assert train_in_a_fork(workspace, "whole", *ADAPTED) == 0, (workspace / "whole.log").read_text()
    return workspace / "whole"


def test_an_engine_that_sleeps_changes_no_number(workspace, uninterrupted):
    """To the bit, under adapters of policy and critic with dropout."""
    status = train_in_a_fork(workspace, "sleeping", *ADAPTED, "--runtime.sleep", "always")
    run = workspace / "sleeping"

    assert status == 0, (workspace / "sleeping.log").read_text()
    assert metrics_without_times(run) == metrics_without_times(uninterrupted)
    assert files_digest(run) == files_digest(uninterrupted)
    assert state_digest(run) == state_digest(uninterrupted)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert all(line["timing"]["moves_s"] > 0 for line in lines if "metrics" in line)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["generate:2", "train:5", "save:6", "export:12"])
def test_a_killed_run_goes_on_to_the_bit(workspace, uninterrupted, point):
    output = f"killed-{point.replace(':', '-')}"
    killed = train_in_a_fork(workspace, output, *ADAPTED, fault=point)
    assert os.WIFSIGNALED(killed), (workspace / f"{output}.log").read_text()
    assert os.WTERMSIG(killed) == signal.SIGKILL

    how = how_to_resume(workspace / output)
    resumed = train_in_a_fork(workspace, output, *ADAPTED, "--resume", how)

    assert resumed == 0, (workspace / f"{output}.log").read_text()
    assert metrics_without_times(workspace / output) == metrics_without_times(uninterrupted)
    assert files_digest(workspace / output) == files_digest(uninterrupted)


def test_the_export_is_an_adapter_and_its_average(uninterrupted, workspace):
    assert list(files_digest(uninterrupted)) == [
        "model/adapter_model.safetensors",
        "model_ema/adapter_model.safetensors",
    ]
    settings = json.loads((uninterrupted / "model" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(workspace / "model")
    PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(workspace / "model"), uninterrupted / "model"
    )


def test_the_reference_is_the_base(workspace, uninterrupted):
    """A second model with the base's weights gives the same numbers, to the bit."""
    shutil.copytree(workspace / "model", workspace / "copy", dirs_exist_ok=True)

    code = train_in_a_fork(workspace, "two", *ADAPTED, "--ref.path", "copy")

    assert code == 0, (workspace / "two.log").read_text()
    assert metrics_without_times(workspace / "two") == metrics_without_times(uninterrupted)
    penalties = [line["kl/ref"] for line in records(uninterrupted, "metrics") if "kl/ref" in line]
    assert penalties[0] == 0.0
    assert max(penalties) > 1e-6


def test_a_critic_on_a_base_of_its_own_is_the_same_to_the_bit(workspace, uninterrupted):
    """The critic of the run above computes with the policy's base; a copied folder is another base."""
    shutil.copytree(workspace / "model", workspace / "copy", dirs_exist_ok=True)

    code = train_in_a_fork(workspace, "apart", *ADAPTED, "--critic.path", "copy")

    assert code == 0, (workspace / "apart.log").read_text()
    shares = "the critic computes with weights that another role of this process holds"
    assert shares in (uninterrupted / "run.log").read_text()
    assert shares not in (workspace / "apart" / "run.log").read_text()
    assert metrics_without_times(workspace / "apart") == metrics_without_times(uninterrupted)
    assert files_digest(workspace / "apart") == files_digest(uninterrupted)
    assert state_digest(workspace / "apart") == state_digest(uninterrupted)


@pytest.mark.parametrize(
    ("flags", "exports"),
    [
        (OF_POLICY, ["model/adapter_model.safetensors", "model_ema/adapter_model.safetensors"]),
        (OF_CRITIC, []),
    ],
    ids=["policy", "critic"],
)
def test_one_of_policy_and_critic_may_have_an_adapter_and_the_other_train_all_weights(
    workspace, flags, exports
):
    """What the one trains does not move the base of the other: bases of their own give the same, to the bit."""
    shutil.copytree(workspace / "model", workspace / "copy", dirs_exist_ok=True)
    together, apart = f"together-{len(exports)}", f"apart-{len(exports)}"
    own = ("--critic.path", "copy", "--ref.path", "model")
    for output, words in ((together, flags), (apart, (*flags, *own))):
        code = train_in_a_fork(workspace, output, *words, "--steps", "3")
        assert code == 0, (workspace / f"{output}.log").read_text()

    assert list(files_digest(workspace / together)) == exports
    assert metrics_without_times(workspace / together) == metrics_without_times(workspace / apart)
    assert state_digest(workspace / together) == state_digest(workspace / apart)
    sizes = {
        role: sum(
            file.stat().st_size
            for file in (workspace / together / "checkpoints").rglob("*.safetensors")
            if role in file.relative_to(workspace / together).as_posix()
        )
        for role in ("policy", "critic")
    }
    adapted, whole = ("policy", "critic") if exports else ("critic", "policy")
    assert 0 < sizes[adapted] < sizes[whole]


def test_an_exported_adapter_may_be_the_reference(workspace, uninterrupted, monkeypatch):
    """Beside the base that policy and critic hold, it gives the numbers of the merged model, up to its rounding."""
    monkeypatch.chdir(workspace)
    assert main(["merge", "model", "whole/model", "merged"]) == 0
    found = {}
    for output, path in (("beside", "whole/model"), ("plain", "merged")):
        words = [*ADAPTED, "--ref.path", path, "--steps", "2"]
        assert train_in_a_fork(workspace, output, *words) == 0, (
            workspace / f"{output}.log"
        ).read_text()
        found[output] = [line["kl/ref"] for line in records(workspace / output, "metrics")]

    shares = "the reference computes with weights that another role of this process holds"
    assert shares in (workspace / "beside" / "run.log").read_text()
    assert shares not in (workspace / "plain" / "run.log").read_text()
    assert found["beside"] == pytest.approx(found["plain"], rel=1e-3, abs=1e-7)
    assert abs(found["beside"][0]) > 1e-6


def test_a_student_may_learn_from_an_exported_adapter(workspace, uninterrupted, monkeypatch):
    rows = [{"prompt": f"{a}+{b}=", "response": f"{a + b:02d}"} for a in range(4) for b in range(4)]
    (workspace / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    monkeypatch.chdir(workspace)
    words = [
        *("distill", "--model", "model", "--data", "sums.jsonl", *QUIET, "--steps", "1"),
        *("--teacher.path", "whole/model", "--teacher.top_k", "16", "--actor.adapter", "lora"),
        *("--actor.adam.lr", "1e-3"),
    ]

    assert main([*words, "--output", "student"]) == 0

    (line,) = records(workspace / "student", "metrics")
    assert line["distill/kl"] > 1e-8
    assert "the teacher computes with weights" in (workspace / "student" / "run.log").read_text()


def test_an_adapter_whose_base_is_gone_is_named(workspace, uninterrupted, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    shutil.copytree("whole/model", "orphan", dirs_exist_ok=True)
    settings = json.loads((workspace / "orphan" / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "/gone/model"
    (workspace / "orphan" / "adapter_config.json").write_text(json.dumps(settings))

    code = main(["train", "-c", "run.toml", *ADAPTED, "--output", "bad", "--ref.path", "orphan"])

    assert code == 2
    assert "adapter orphan: its base /gone/model is not there" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_adapter(workspace, uninterrupted, capsys, monkeypatch):
    monkeypatch.chdir(workspace)
    words = ["train", "-c", "run.toml", "--output", "whole", "--resume", "auto"]

    other = main([*words, *ADAPTED, "--actor.lora.alpha", "3"])
    none = main(words)

    assert (other, none) == (2, 2)
    said = capsys.readouterr().err
    assert "--actor.lora.alpha is 3, but the checkpoint" in said
    assert "--actor.adapter is None, but the checkpoint" in said


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model``, ``sums.jsonl`` and ``pairs.jsonl``."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    sums = [{"prompt": f"{a}+{b}=", "response": f"{a + b:02d}"} for a in range(5) for b in range(5)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, sums)) + "\n")
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_supervised_training_that_was_killed_goes_on_to_the_bit(folder, adapter):
    words = [
        *("sft", "--model", "model", "--data", "sums.jsonl", *QUIET, "--train.batch_size", "8"),
        *("--train.epochs", "2", "--checkpoint.every", "2", "--runtime.local.threads", "1"),
        *("--actor.adapter", adapter, "--actor.adam.lr", "1e-3", "--model.dtype", "bfloat16"),
        *(*seen_and_new("sums.jsonl"), "--eval.every", "3"),
    ]
    assert run_in_a_fork(folder, "whole", [*words, "--output", "whole"]) == 0
    killed = run_in_a_fork(folder, "cut", [*words, "--output", "cut"], fault="train:5")
    assert os.WIFSIGNALED(killed), (folder / "cut.log").read_text()

    assert run_in_a_fork(folder, "cut", [*words, "--output", "cut", "--resume", "auto"]) == 0

    assert metrics_without_times(folder / "cut") == metrics_without_times(folder / "whole")
    assert files_digest(folder / "cut") == files_digest(folder / "whole")
    first, *_, last = records(folder / "whole", "eval")
    assert last["eval/seen/nll"] < first["eval/seen/nll"]


def test_the_loss_of_preferences_is_against_the_base(folder):
    """The second loss is that of the adapter after the first update, by plain PEFT and Transformers."""
    words = [
        *("dpo", "--model", "model", "--data", "pairs.jsonl", *QUIET, "--train.batch_size", "16"),
        *("--actor.adapter", "lora", "--actor.warmup_ratio", "0", "--actor.adam.lr", "1e-2"),
        *("--preference.dpo.beta", "0.3"),
    ]
    for steps in ("1", "2"):
        assert main([*words, "--steps", steps, "--output", f"run{steps}"]) == 0
    first, second = records(folder / "run2", "metrics")
    reference = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)

    policy = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32), "run1/model"
    )

    assert first["loss/preference"] == pytest.approx(math.log(2), abs=1e-6)
    expected = naive_loss(policy, reference, PAIRS, 0.3).item()
    assert second["loss/preference"] == pytest.approx(expected, abs=1e-5)
    assert second["loss/preference"] < first["loss/preference"] - 1e-3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--actor.lora.target", "q_prog"], "the nearest are q_proj"),
        (["--engine.embedded.weights", "copy"], "embedded has it with other options"),
        (["--actor.lora.rank", "0"], "expected at least 1"),
        (["--actor.lora.serve", "sideways"], "'adapter' or 'merged'"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2(workspace, monkeypatch, capsys, words, message):
    monkeypatch.chdir(workspace)
    common = ["train", "-c", "run.toml", "--output", "bad", "--actor.adapter", "lora"]

    assert main([*common, *words]) == 2

    assert message in capsys.readouterr().err


def test_an_adapter_is_no_model_path(workspace, uninterrupted, monkeypatch, capsys):
    monkeypatch.chdir(workspace)

    code = main(["train", "-c", "run.toml", "--output", "bad", "--model", "whole/model"])

    assert code == 2
    assert "rlhf merge" in capsys.readouterr().err


def test_a_low_learning_rate_is_doubted(folder, caplog):
    words = ["sft", "--model", "model", "--data", "sums.jsonl", "--actor.adapter", "lora"]

    assert main([*words, *QUIET, "--output", "run", "--steps", "1"]) == 0

    assert "--actor.adapter lora with a learning rate of 2e-05" in caplog.text
    assert "--actor.adam.lr 0.0002" in (folder / "run" / "run.log").read_text()


def test_the_plan_says_what_the_reference_is(workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)

    assert main(["train", "-c", "run.toml", *ADAPTED, "--dry-run"]) == 0

    said = capsys.readouterr().out
    assert "the policy without its adapter" in said
    assert "value head, adapter lora:lora" in said


READS_ANEW = """
from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import SERVES_ADAPTERS


@hookimpl
def rlhf_engines():
    return [Component(name="anew", factory="anew:Anew", provides=frozenset({SERVES_ADAPTERS}))]
"""


@pytest.mark.parametrize(("engine", "code"), [("anew", 2), ("vllm", 0)])
def test_an_engine_has_to_serve_what_a_base_in_four_bits_computes_with(
    workspace, monkeypatch, capsys, engine, code
):
    (workspace / "anew_engine.py").write_text(READS_ANEW)
    monkeypatch.chdir(workspace)
    monkeypatch.syspath_prepend(workspace)
    monkeypatch.setenv("RLHF_PLUGINS", "anew_engine")
    words = ["train", "-c", "run.toml", "--actor.adapter", "qlora", "--engine", engine, "--check"]

    assert main(words) == code

    said = capsys.readouterr().err
    assert ("needs 'serves_four_bits': choose --engine embedded" in said) == (code == 2)
