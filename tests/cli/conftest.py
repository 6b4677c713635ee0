import pytest

from rlhf_cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a model's folder, a data file and a reward."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLHF_PLUGINS", raising=False)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (tmp_path / "reward.py").write_text("def score(prompt, response):\n    return 1.0\n")
    return tmp_path


@pytest.fixture
def rlhf(capsys):
    """Run the command line in this process: exit code, stdout, stderr."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
