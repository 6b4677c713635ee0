"""Markers become tokens of images once, and markers again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.processor_text import ProcessorText
from rlhf_core.media.reference import MediaRef
from rlhf_core.media.spans import MediaSpan, collapsed, expanded

MARKER, PAD = 90, 91


class Tokens:
    """A family that writes ``width`` pads between a begin and an end."""

    marker_id = MARKER
    never_sampled = (MARKER, PAD)
    writing = ProcessorText()

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        return (80, *[PAD] * image.width, 81)


def image(width: int) -> MediaRef:
    return MediaRef(sha256=f"{width:064x}", num_bytes=1, format="png", width=width, height=1)


def test_a_marker_becomes_the_tokens_of_its_image():
    token_ids, spans = expanded([1, MARKER, 2, MARKER], [image(2), image(1)], Tokens())

    assert token_ids == (1, 80, PAD, PAD, 81, 2, 80, PAD, 81)
    assert spans == (
        MediaSpan(start=1, length=4, image=image(2)),
        MediaSpan(start=6, length=3, image=image(1)),
    )


@pytest.mark.parametrize("images", [[], [image(1)], [image(1)] * 3])
def test_other_numbers_of_images_than_of_markers_are_refused(images):
    with pytest.raises(MediaProblem, match=f"{len(images)} images and 2 places"):
        expanded([MARKER, 1, MARKER], images, Tokens())


@given(st.lists(st.one_of(st.integers(0, 50), st.builds(image, st.integers(1, 5)))))
def test_collapsing_inverts_expanding(parts):
    images = [part for part in parts if isinstance(part, MediaRef)]
    short = [MARKER if isinstance(part, MediaRef) else part for part in parts]

    token_ids, spans = expanded(short, images, Tokens())

    assert collapsed(token_ids, spans, MARKER) == short
    for span in spans:
        assert token_ids[span.start : span.end] == Tokens().tokens_of(span.image)
    outside = set(range(len(token_ids))) - {i for s in spans for i in range(s.start, s.end)}
    assert len(outside) == len(parts) - len(images)
