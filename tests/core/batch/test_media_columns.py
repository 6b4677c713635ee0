"""Images of trajectories: where they may stand, and how they are cut and joined with their rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.batch.media_columns import media_rows, media_spans
from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Trajectory, Turn
from rlhf_core.batch.trajectory_columns import IMAGE, TrajectoryColumns
from rlhf_core.media import MediaRef, MediaSpan, PixelLimits
from rlhf_trainer.learning.model_outputs import one_more_action


def image(number: int) -> MediaRef:
    return MediaRef(
        sha256=f"{number:064x}",
        num_bytes=1 + number,
        format="webp",
        width=3,
        height=2 + number,
        limits=PixelLimits(max_pixels=number or None),
    )


def span(start: int, length: int, number: int = 0) -> MediaSpan:
    return MediaSpan(start=start, length=length, image=image(number))


def trajectory(prompt: int, *media: MediaSpan, length: int = 8) -> Trajectory:
    mask = np.zeros(length, dtype=bool)
    mask[-2:] = True
    return Trajectory(
        uid=Uid(0, prompt),
        token_ids=np.arange(length, dtype=np.int32),
        action_mask=mask,
        rollout_logprobs=np.zeros(2, dtype=np.float32),
        weight_version=np.zeros(2, dtype=np.int32),
        turns=(Turn(start=length - 2, end=length),),
        media=media,
    )


@pytest.mark.parametrize(
    ("media", "reason"),
    [
        ([span(6, 1)], "the policy wrote tokens of the image"),
        ([span(2, 0)], "is empty"),
        ([span(2, 9)], "lies outside of 8 tokens"),
        ([span(1, 3), span(3, 2)], "overlaps the one before"),
        ([span(4, 1), span(1, 1)], "overlaps the one before"),
    ],
)
def test_an_image_stands_on_tokens_of_its_own(media, reason):
    with pytest.raises(ValueError, match=reason):
        trajectory(0, *media)


def test_spans_survive_as_an_array():
    spans = (span(1, 2, 5), span(4, 1, 10**9))

    assert media_spans(media_rows(spans)) == spans


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_images_stay_with_their_rows(counts, random):
    rows = [
        trajectory(prompt, *(span(place, 1, 10 * prompt + place) for place in range(count)))
        for prompt, count in enumerate(counts)
    ]
    order = random.sample(range(len(rows)), len(rows))
    batch = TrajectoryColumns.concatenate(
        [TrajectoryColumns.from_trajectories([rows[index]]) for index in order]
    )
    chosen = np.array(random.choices(range(len(rows)), k=4))

    part = batch.select(chosen)

    assert [batch.media_of(row) for row in range(len(batch))] == [row.media for row in rows]
    assert [part.media_of(row) for row in range(4)] == [rows[row].media for row in chosen]


def test_a_row_with_one_more_action_keeps_its_images():
    batch = TrajectoryColumns.from_trajectories([trajectory(0, span(1, 2)), trajectory(1)])

    longer = one_more_action(batch)

    assert [longer.media_of(row) for row in range(2)] == [(span(1, 2),), ()]
    assert replace(longer, tokens=batch.tokens).media is longer.media


def test_tokens_of_different_images_differ_and_others_stay():
    batch = TrajectoryColumns.from_trajectories(
        [
            trajectory(0, span(1, 2, 5), span(4, 1, 6)),
            trajectory(1, span(1, 2, 6)),
            trajectory(2, span(1, 2, 5)),
        ]
    )

    first, other, again = batch.tokens_with_images()

    assert first.tolist() == [0, 1 + IMAGE, 2 + IMAGE, 3, 4 + 2 * IMAGE, 5, 6, 7]
    assert other.tolist() == [0, 1 + 2 * IMAGE, 2 + 2 * IMAGE, 3, 4, 5, 6, 7]
    assert again.tolist() == [0, 1 + IMAGE, 2 + IMAGE, 3, 4, 5, 6, 7]
