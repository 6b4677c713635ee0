"""The part of a state that one rank has."""

import pytest

from rlhf_plugin_plan.memory.sharing import Sharing


@pytest.mark.parametrize(("stage", "expected"), [(0, 1.0), (1, 1.0), (2, 0.25), (3, 0.25)])
def test_ranks_share_what_their_stage_divides(stage, expected):
    """Gradients are divided from stage 2 on."""
    assert Sharing(stage=stage, ranks=4).part(2) == expected
