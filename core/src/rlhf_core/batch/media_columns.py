"""Images of many trajectories as one array: references and places, no pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

from ..lazy import NDArray, np
from ..media.reference import FORMATS, Frame, MediaRef, PixelLimits
from ..media.spans import MediaSpan

MEDIA = [
    ("start", "<i8"),
    ("length", "<i8"),
    ("sha256", "u1", (32,)),
    ("num_bytes", "<i8"),
    ("format", "u1"),
    ("width", "<i4"),
    ("height", "<i4"),
    ("min_pixels", "<i8"),
    ("max_pixels", "<i8"),
    ("index", "<i4"),
    ("count", "<i4"),
    ("time_s", "<f8"),
    ("rate", "<f8"),
]
"""The fields of a ``MediaSpan`` as fixed bytes, of which numpy makes a type; ``format`` is its index in ``FORMATS``. A
limit that is not set is 0, and so is the ``count`` of an image that is no frame of a video."""


def media_rows(spans: Sequence[MediaSpan]) -> NDArray[np.void]:
    """Return (I,) spans as an array of ``MEDIA``; ``media_spans`` inverts it."""
    rows = np.zeros(len(spans), dtype=MEDIA)
    for index, span in enumerate(spans):
        image, frame = span.image, span.image.frame
        place = (0, 0, 0.0, 0.0) if frame is None else astuple(frame)
        rows[index] = (
            span.start,
            span.length,
            np.frombuffer(bytes.fromhex(image.sha256), dtype=np.uint8),
            image.num_bytes,
            FORMATS.index(image.format),
            image.width,
            image.height,
            image.limits.min_pixels or 0,
            image.limits.max_pixels or 0,
            *place,
        )
    return rows


def with_references(
    rows: NDArray[np.void], reference: Callable[[MediaRef], MediaRef]
) -> NDArray[np.void]:
    """Return (I,) the spans of an array of ``MEDIA`` with other references to their images."""
    spans = media_spans(rows)
    return media_rows([replace(span, image=reference(span.image)) for span in spans])


def media_spans(rows: NDArray[np.void]) -> tuple[MediaSpan, ...]:
    """Return the spans of an array of ``MEDIA``."""
    return tuple(
        MediaSpan(
            start=int(row["start"]),
            length=int(row["length"]),
            image=MediaRef(
                sha256=row["sha256"].tobytes().hex(),
                num_bytes=int(row["num_bytes"]),
                format=FORMATS[int(row["format"])],
                width=int(row["width"]),
                height=int(row["height"]),
                limits=PixelLimits(
                    min_pixels=int(row["min_pixels"]) or None,
                    max_pixels=int(row["max_pixels"]) or None,
                ),
                frame=_frame(row) if row["count"] else None,
            ),
        )
        for row in rows
    )


def _frame(row: np.void) -> Frame:
    return Frame(
        index=int(row["index"]),
        count=int(row["count"]),
        time_s=float(row["time_s"]),
        rate=float(row["rate"]),
    )
