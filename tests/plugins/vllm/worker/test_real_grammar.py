"""An answer below a grammar by vLLM itself: one case, since an engine takes half a minute to start; the others are in
``test_grammars``."""

import importlib.util
import os
from pathlib import Path

import pytest
from tests.open_places import listening, modes, promised

from rlhf_core.storage import temporary_folder

from ..listening import require_no_answer
from ..masked_reference import check_a_schema

pytestmark = [
    pytest.mark.scale,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs llguidance"),
]


def test_vllm_obeys_a_schema_and_has_the_log_probs_of_the_masked_distribution(
    byte_engine, byte_model, byte_tokenizer, run, make_request
):
    check_a_schema(byte_engine, byte_model, byte_tokenizer, run, make_request, temperature=1.5)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read in /proc/net")
def test_its_sockets_are_on_loopback_or_in_a_folder_of_its_owner(byte_engine):
    made = modes(Path(temporary_folder()))
    own = {mode for name, mode in made.items() if name.startswith("rlhf-vllm-")}

    assert own == {promised("Files", "the folder `rlhf-vllm-*`").lstrip("0")}
    where = listening(os.getpid())
    assert all(
        place in ("127.0.0.1", "::1") or "/rlhf-vllm-" in place or place.startswith("@")
        for place in where
    ), where
    assert "127.0.0.1" in promised("What listens, and where", "workers of vLLM on one machine")
    require_no_answer()
