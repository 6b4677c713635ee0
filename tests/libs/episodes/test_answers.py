"""An episode of one answer: it is what its graph would make of it, without a graph."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core import RolloutError
from rlhf_core.contracts import Completion, Stop, Uid
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_episodes import EpisodeGraph, single_answer
from rlhf_testing.errors import has_code

UID = Uid(2, 7, 3)
PROMPT = np.array([5, 6, 5, 6], dtype=np.int32)
IMAGE = MediaRef(sha256=f"{1:064x}", num_bytes=1, format="png", width=2, height=2)
MASSES = st.sampled_from([0.1, 0.9995, 1.0])


@st.composite
def completions(draw):
    count = draw(st.integers(1, 5))
    numbers = np.arange(count)
    masses = draw(st.none() | st.lists(MASSES, min_size=count, max_size=count))
    routes = None
    if draw(st.booleans()):
        routes = (np.arange((len(PROMPT) + count - 1) * 4) % 7).reshape(-1, 2, 2).astype(np.int8)
    return Completion(
        token_ids=(numbers + 10).astype(np.int32),
        logprobs=(-numbers / 8).astype(np.float32),
        weight_version=(numbers // 2).astype(np.int32),
        stop=draw(st.sampled_from([Stop.EOS, Stop.STRING, Stop.LENGTH])),
        allowed_mass=None if masses is None else np.array(masses, dtype=np.float32),
        expert_routes=routes,
    )


@given(completions(), st.booleans(), st.booleans())
def test_it_is_the_trajectory_of_a_graph_with_one_request(completion, one_token, has_image):
    media = [MediaSpan(start=1, length=2, image=IMAGE)] if has_image else []
    graph = EpisodeGraph(UID, one_token_turns=one_token)
    graph.add(PROMPT, completion, media=media)

    made = single_answer(UID, PROMPT, completion, one_token_turns=one_token, media=media)

    expected = graph.trajectories()
    assert len(made) == len(expected)
    for one, other in zip(made, expected, strict=True):
        for field in fields(one):
            value, wanted = getattr(one, field.name), getattr(other, field.name)
            if isinstance(wanted, np.ndarray):
                assert value.dtype == wanted.dtype
                np.testing.assert_array_equal(value, wanted)
            else:
                assert value == wanted


def test_what_an_engine_must_not_return_is_named():
    broken = Completion(
        token_ids=np.array([3], dtype=np.int32),
        logprobs=np.zeros(2, dtype=np.float32),
        weight_version=np.zeros(1, dtype=np.int32),
        stop=Stop.EOS,
    )

    with pytest.raises(
        RolloutError,
        match=r"2\.7\.3.*1 tokens, 2 log-probs",
        check=has_code("engine/counts-differ"),
    ):
        single_answer(UID, PROMPT, broken)
