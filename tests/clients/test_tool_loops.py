"""Conversations with tools go on with the tokens that were sampled, whatever a framework does to ids and contents."""

import pytest

from rlhf_testing.fakes import FakeRenderer

from .cases import TEXT
from .loops import LOOPS, agno_of_two_protocols, written
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


def test_agno_renames_calls_and_its_session_stays_one_row():
    found, sent = [], []

    (row,) = play_written(asking(agno_of_two_protocols, None, found, sent), written).rows

    assert found == [[TEXT, TEXT]]
    *_, chat, responses = (each["body"] for each in sent)
    ours = [call["id"] for each in chat["messages"] for call in each.get("tool_calls", ())]
    theirs = [each["call_id"] for each in responses["input"] if each.get("type") == "function_call"]
    assert len(ours) == len(theirs) == 3
    assert not set(ours) & set(theirs)
    assert row.metrics["graph/requests"] == 4.0
    assert row.metrics["graph/forks"] == 0.0
