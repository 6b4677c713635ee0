"""What a request for tokens may ask for, whatever engine serves it."""

import pytest

from rlhf_core import RolloutError
from rlhf_core.contracts import GenerationRequest, SamplingParams, Uid
from rlhf_testing.errors import has_code


def request(prompt_ids, *, seeds=(1,), max_new_tokens=32, stop=()):
    return GenerationRequest(
        uid=Uid(0, 77),
        prompt_ids=prompt_ids,
        seeds=seeds,
        sampling=SamplingParams(max_new_tokens=max_new_tokens, stop=stop),
    )


@pytest.mark.parametrize(
    ("prompt", "changes", "said", "code"),
    [
        ((), {}, "the prompt is empty", "engine/refused-request"),
        (
            (5, 100),
            {},
            "token id 100 is outside of the model's vocabulary of 100",
            "rollout/unknown-token",
        ),
        (
            (5, -1),
            {},
            "token id -1 is outside of the model's vocabulary of 100",
            "rollout/unknown-token",
        ),
        (
            (5,) * 16,
            {},
            "has 16 tokens, which leaves no room .* max_length of 16",
            "engine/refused-request",
        ),
        ((5,), {"seeds": ()}, "there are no seeds", "engine/refused-request"),
        (
            (5,),
            {"max_new_tokens": 0},
            "max_new_tokens is 0; expected at least 1",
            "engine/refused-request",
        ),
        ((5,), {"stop": ("###", "")}, "a stop string is empty", "engine/refused-request"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_uid(prompt, changes, said, code):
    with pytest.raises(RolloutError, match=rf"request 0\.77\.0\.0: .*{said}", check=has_code(code)):
        request(prompt, **changes).checked_limit(16, 100)


@pytest.mark.parametrize(
    ("prompt_tokens", "asked", "limit"),
    [(10, 32, 6), (10, 6, 6), (10, 4, 4), (15, 32, 1)],
)
def test_the_limit_is_what_is_asked_for_or_what_the_length_leaves(prompt_tokens, asked, limit):
    """16 tokens in all: a prompt of 10 leaves 6."""
    one = request((5,) * prompt_tokens, max_new_tokens=asked)

    assert one.checked_limit(16, 100) == limit


def test_the_last_id_of_the_vocabulary_can_be_served():
    assert request((0, 99)).checked_limit(16, 100) == 14
