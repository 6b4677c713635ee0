import pytest

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Runs ``rlhf train --check`` with the executor."""
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    (tmp_path / "mine.jsonl").write_text('{"prompt": "2+2="}\n')
    (tmp_path / "mine.py").write_text("def agent(context):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)

    def run(*flags, code):
        common = ["--model", "model", "--data", "mine.jsonl", "--executor", "endpoint"]
        common += ["--data.max_prompt_tokens", "8"]
        assert main(["train", "--check", *common, *flags]) == code

    return run


AGENT = ("--rollout.endpoint.agent", "mine.py:agent")


def test_a_run_whose_agent_gives_the_reward_needs_no_other(check):
    check(*AGENT, "--rollout.max_length", "64", code=0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (AGENT, "--rollout.max_length is required with several turns"),
        (("--rollout.max_length", "64"), "rollout.endpoint.agent"),
        (
            (*AGENT, "--rollout.max_length", "64", "--rollout.endpoint.reward_from", "rewards"),
            "add one with --reward",
        ),
    ],
)
def test_a_run_that_cannot_work_is_refused_before_it_starts(check, capsys, flags, message):
    check(*flags, code=2)

    assert message in capsys.readouterr().err
