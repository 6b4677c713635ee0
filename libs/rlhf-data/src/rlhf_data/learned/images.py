"""Images of rows to learn from: all their tokens, in the place of the markers that the chat template wrote, and batches
whose images are taken in when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.media_columns import with_references
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.media.loader import ImagesOnUse
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.reference import MediaRef
from rlhf_core.media.spans import MediaSpan

from ..rows import RowProblem
from .tokens import LearnedTokens


def with_images(
    tokens: LearnedTokens | RowProblem, media: Sequence[MediaRef], reader: ImageReader | None
) -> LearnedTokens | RowProblem:
    """Return the tokens of a text with all tokens of its images; a problem where they do not fit the text.

    Args:
        tokens: tokens with one marker for each image, or the text's problem.
        media: the images, in order.
        reader: gives images their tokens; None: the model reads text alone.
    """
    if reader is None or isinstance(tokens, RowProblem):
        return tokens
    ids = tokens.token_ids.tolist()
    begun = reader.tokens.writing.begun(ids)
    try:
        whole = reader.expand(begun, media)
    except MediaProblem as problem:
        return RowProblem(problem.kind, problem.reason)
    token_ids = np.array(whole.token_ids, dtype=np.int32)
    turns = moved(tokens.turns + len(begun) - len(ids), whole.spans)
    learned = np.concatenate([token_ids[first:last] for first, last in turns.tolist()])
    if np.isin(learned, reader.tokens.never_sampled).any():
        return RowProblem(
            "image in an answer",
            "the answer has a token that stands for images, which a policy never writes; leave it out",
        )
    return replace(tokens, token_ids=token_ids, turns=turns, media=whole.spans)


def moved(places: NDArray[np.int64], spans: Sequence[MediaSpan]) -> NDArray[np.int64]:
    """Return places among tokens with one marker for each image and each video, as places among all of their tokens.

    Args:
        spans: images and their tokens, in order.
    """
    shown = _shown(spans)
    growth = np.array([last.end - first.start - 1 for first, last in shown], dtype=np.int64)  # (I,)
    grown = np.concatenate([[0], np.cumsum(growth)])  # (I + 1,)
    starts = np.array([first.start for first, _ in shown], dtype=np.int64)  # (I,)
    markers = starts - grown[:-1]  # (I,)
    moved_places: NDArray[np.int64] = places + grown[np.searchsorted(markers, places, side="left")]
    return moved_places


def _shown(spans: Sequence[MediaSpan]) -> list[tuple[MediaSpan, MediaSpan]]:
    """Return the first and the last span of each image and each video."""
    shown: list[tuple[MediaSpan, MediaSpan]] = []
    for span in spans:
        frame = span.image.frame
        if shown and frame is not None and frame.index:
            shown[-1] = (shown[-1][0], span)
        else:
            shown.append((span, span))
    return shown


def used_images(rows: TrajectoryColumns, on_use: ImagesOnUse | None) -> TrajectoryColumns:
    """Return rows of a batch whose images are in the store from now on.

    Args:
        on_use: takes them in; None: they are there.

    Raises:
        DataError: an image is gone, or was changed since the rows were read.
    """
    if on_use is None or not len(rows.media):
        return rows
    return replace(rows, media=with_references(rows.media, on_use.use))
