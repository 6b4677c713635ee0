from pathlib import Path

import pytest

from rlhf_config.resolved import RewardOptions, Selection
from rlhf_core.contracts import RewardRequest, Turn
from rlhf_core.plugins import load


@pytest.fixture
def probe(monkeypatch):
    """``probe(behavior, **reward_options)``: a selection of the misbehaving reward."""
    # Workers get sys.path from the run and load plugins themselves.
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("RLHF_PLUGINS", "probe_rewards")
    registered = load().get("rlhf_rewards", "probe")

    def select(behavior="good", *, name="probe", file="", **options):
        return Selection(
            slot="reward.use",
            section=f"reward.{name}",
            registered=registered,
            options=registered.validate({"behavior": behavior, "file": str(file)}),
            reward=RewardOptions(**options),
        )

    return select


@pytest.fixture
def requests_for():
    """``requests_for(rows)``: one request per row, whose response is as long as its position."""

    def make(rows):
        return [
            RewardRequest(
                uid=f"0.{index}.0.0",
                row=row,
                prompt="p",
                response="x" * index,
                token_ids=(1, 2, 3),
                action_mask=(False, True, True),
                turns=(Turn(start=1, end=3),),
                truncated=False,
            )
            for index, row in enumerate(rows)
        ]

    return make
