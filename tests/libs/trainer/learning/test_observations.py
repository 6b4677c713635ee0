"""Turns that start from the same text and images share an index."""

from dataclasses import replace

import numpy as np

from rlhf_core.batch.media_columns import media_rows
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_trainer.learning.advantages import observations


def test_the_prompt_stands_before_first_turns_and_the_environments_text_before_later_ones(batch_of):
    batch = batch_of({(4, 0): "pqABrsC", (4, 1): "pqXrsYZ"})

    # prompt "pq" is 0 for A, B and X; "rs" is 1 for C, Y and Z
    assert observations(batch).tolist() == [0, 0, 1, 0, 1, 1]


def test_the_same_text_at_another_turn_is_the_same_observation(batch_of):
    batch = batch_of({(4, 0): "pAsBsC", (4, 1): "pXtY"})

    assert observations(batch).tolist() == [0, 1, 1, 0, 2]


def test_the_same_text_for_another_prompt_is_another_observation(batch_of):
    batch = batch_of({(4, 0): "pAB", (5, 0): "pC"})

    assert observations(batch).tolist() == [0, 0, 1]


def test_another_image_of_the_same_size_is_another_observation(batch_of):
    """Both are the same tokens: ``i`` in the prompt, and ``j`` in what the environment shows."""
    batch = batch_of({(4, 0): "piAjB", (4, 1): "piAjB", (4, 2): "piAjB"})
    one, other = (
        MediaRef(sha256=f"{number:064x}", num_bytes=1, format="png", width=8, height=8)
        for number in (1, 2)
    )
    shown = [(one, one), (one, other), (other, one)]
    spans = [
        MediaSpan(start=start, length=1, image=image)
        for images in shown
        for start, image in zip((1, 3), images, strict=True)
    ]

    found = observations(replace(batch, num_media=np.array([2, 2, 2]), media=media_rows(spans)))

    assert found.tolist() == [0, 1, 0, 2, 3, 1]
