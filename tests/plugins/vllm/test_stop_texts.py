"""Texts that end a turn: vLLM finds each at the token at which the embedded engine finds it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlhf_plugin_local.engine.stop import StopWatcher
from rlhf_testing.tiny import tiny_tokenizer

detokenizer = pytest.importorskip("vllm.v1.engine.detokenizer")

pytestmark = [pytest.mark.scale, pytest.mark.slow]

TEXT = "abcabcab, abcabd"  # one character is one token here


def end_by_vllm(tokens: list[int], stop: tuple[str, ...], fewest: int) -> int | None:
    """Return the number of tokens with the one that completes a stop string; None: none does."""
    from vllm import SamplingParams

    request = SimpleNamespace(
        request_id="0",
        prompt_token_ids=[5],
        prompt_embeds=None,
        sampling_params=SamplingParams(
            stop=list(stop),
            min_tokens=fewest,
            max_tokens=99,
            include_stop_str_in_output=True,
            skip_special_tokens=False,
        ),
    )
    reader = detokenizer.FastIncrementalDetokenizer(tiny_tokenizer(), request)
    ends = (place + 1 for place, token in enumerate(tokens) if reader.update([token], False))
    return next(ends, None)


@pytest.mark.parametrize("fewest", [0, 1, 2, 3, 5, 8, 15, 16])
@pytest.mark.parametrize("stop", [("a",), ("c", "bd"), ("bca",), (", a",), ("zz",), ("b", "d")])
def test_vllm_ends_a_turn_where_the_embedded_engine_does(stop, fewest):
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    watcher = StopWatcher(tokenizer.decode, stop, fewest)

    ours = next((place + 1 for place, token in enumerate(tokens) if watcher.push(token)), None)

    assert ours == end_by_vllm(tokens, stop, fewest)
