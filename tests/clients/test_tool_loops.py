"""Conversations with tools go on with the tokens that were sampled, whatever a framework does to ids and contents."""

import pytest

from rlhf_testing.fakes import FakeRenderer

from .cases import TEXT
from .loops import LOOPS, written
from .policy import asking, play_written

pytestmark = pytest.mark.usefixtures("installed_clients")


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_tools_is_one_row_without_a_fork(name):
    found = []

    (row,) = play_written(asking(LOOPS[name], None, found, []), written).rows

    assert found == [TEXT]
    assert row.metrics["graph/requests"] == 3.0
    assert row.metrics["graph/forks"] == 0.0
    assert row.metrics["graph/retokenized_tokens"] == 0.0
    said = FakeRenderer().decode(row.token_ids[row.action_mask], skip_special_tokens=False)
    assert said.count("<tool_call>") == 3
    assert said.endswith(f"{TEXT}<eos>")
