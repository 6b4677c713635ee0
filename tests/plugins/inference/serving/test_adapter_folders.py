"""An adapter's folder is looked at before a model is loaded, by each command that serves one."""

import json

import pytest

from rlhf_cli.main import main

COMMANDS = {
    "chat": ["chat", "model"],
    "generate": ["generate", "--model", "model", "--data", "rows.jsonl"],
    "eval": ["eval", "model", "--data", "rows.jsonl", "--reward", "exact_match"],
}


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A folder with rows, and a model without weights, so that what loads it fails with another error."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a", "answer": "b"}))
    (tmp_path / "bare").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("switch", [(), ("--check",)])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ("nowhere", "expected a PEFT folder; there is no such folder"),
        ("some/name", "expected a PEFT folder; there is no such folder"),
        ("rows.jsonl", "expected a PEFT folder; this is a file"),
        ("bare", "expected a PEFT folder; it has no adapter_config.json"),
        ("model", "expected a PEFT folder; it has no adapter_config.json"),
    ],
)
def test_a_folder_that_is_no_adapter_is_refused(
    command, adapter, reason, switch, workspace, capsys
):
    code = main([*COMMANDS[command], "--model.adapter", adapter, *switch])

    assert code == 2
    assert f"--model.adapter {adapter}: {reason}" in capsys.readouterr().err
    assert not (workspace / "runs").exists()
