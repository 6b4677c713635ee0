"""No port of a vLLM worker answers, so that no other user of the machine reaches one."""

from __future__ import annotations

import pytest
from tests.plugins.vllm.listening import require_no_answer

pytestmark = pytest.mark.scale


def test_no_port_of_a_working_engine_answers(shared_engine):
    require_no_answer()
