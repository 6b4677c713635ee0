"""A value of another type is named, never taken for what it is not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlhf_core import CheckpointError
from rlhf_trainer.loop.state import typed


@dataclass(frozen=True, kw_only=True)
class Form:
    step: int
    places: list[tuple[int, int]]
    share: float = 0.5


def test_json_becomes_the_form_and_what_it_does_not_know_is_left_out():
    found = typed(Form, {"step": 1, "places": [[0, 2]], "share": 1, "other": {}})

    assert found == Form(step=1, places=[(0, 2)], share=1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"step": "1", "places": []},
            "'step' is damaged: Input should be a valid integer; got '1'",
        ),
        ({"step": True, "places": []}, "'step' is damaged"),
        ({"step": 1.5, "places": []}, "'step' is damaged"),
        ({"step": 1, "places": [[0]]}, "'places.0.1' is damaged"),
        ({"places": []}, "'step' is damaged: Field required"),
        ({"step": 1, "places": [], "share": None}, "'share' is damaged"),
    ],
    ids=str,
)
def test_another_type_is_refused(values, message):
    with pytest.raises(CheckpointError) as caught:
        typed(Form, values)

    assert message in str(caught.value)
