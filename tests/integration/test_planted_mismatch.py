"""Sampler and trainer that compute different things are found in the first step."""

from dataclasses import replace

import pytest

from rlhf_config.common import SamplingOptions
from rlhf_plugin_local.engine.embedded import EmbeddedEngine

SAYS = "sampler and trainer disagree about the tokens that were just sampled"


def planted(monkeypatch, change):
    """Let ``change`` falsify what the engine returns."""
    whole = EmbeddedEngine.generate

    async def generate(self, request):
        return [change(completion) for completion in await whole(self, request)]

    monkeypatch.setattr(EmbeddedEngine, "generate", generate)


def test_another_temperature_of_the_sampler_is_found(train, monkeypatch, capsys):
    whole = SamplingOptions.params
    monkeypatch.setattr(
        SamplingOptions, "params", lambda options: replace(whole(options), temperature=0.02)
    )

    train("run", "--steps", "3", code=1)

    assert SAYS in capsys.readouterr().err


def test_log_probs_of_something_else_are_found(train, monkeypatch, capsys):
    def falsified(completion):
        return replace(completion, logprobs=completion.logprobs - 1.0)

    planted(monkeypatch, falsified)

    train("run", "--steps", "3", code=1)

    error = capsys.readouterr().err
    assert SAYS in error
    assert "max_mismatch" in error


@pytest.mark.parametrize("flags", [["--rollout.max_mismatch", "none"], ["--rollout.top_p", "0.9"]])
def test_it_can_be_switched_off_and_does_not_judge_truncated_sampling(train, monkeypatch, flags):
    planted(monkeypatch, lambda one: replace(one, logprobs=one.logprobs - 1.0))

    lines = train("run", "--steps", "2", *flags)

    assert lines[-1]["metrics"]["mismatch/logprob_diff_mean"] > 0.5
