"""Images on their way from tasks and environments to the engine. A bad one is its environment's failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlhf_core import EnvironmentFailure, RolloutError
from rlhf_core.contracts import Observation, RolloutContext, Uid
from rlhf_core.media import (
    Expanded,
    ImageReader,
    MediaProblem,
    MediaRef,
    image_parts,
    without_images,
)


def admitted(observation: Observation, context: RolloutContext) -> Observation:
    """Return an observation whose images are in the run's store, with references in their place.

    Raises:
        EnvironmentFailure: an image cannot be used, or the policy reads text alone.
    """
    if not observation.messages:
        return observation
    try:
        if context.images is None:
            without_images(observation.messages)
            return observation
        return replace(observation, messages=context.images.messages(observation.messages))
    except MediaProblem as problem:
        raise EnvironmentFailure(
            f"an image of the observation cannot be used: {problem}",
            code="environment/unusable-image",
        ) from problem


def has_room_for_images(num_images: int, observation: Observation, context: RolloutContext) -> bool:
    """Return whether an episode may have the images of an observation, and the frames of its videos, beside those that
    it has."""
    if context.images is None:
        return True
    shown = (part.get("video") for part in image_parts(observation.messages))
    new = sum(len(frames) if isinstance(frames, list | tuple) else 1 for frames in shown)
    return num_images + new <= context.images.loader.limits.max_images


def expanded(
    token_ids: Sequence[int], images: Sequence[MediaRef], context: RolloutContext
) -> Expanded:
    """Return what the policy reads: all tokens of the images in the place of their markers.

    Raises:
        MediaProblem: the images do not fit the markers, or the policy reads text alone.
    """
    if context.images is not None:
        return context.images.expand(token_ids, images)
    if images:
        raise MediaProblem(
            "image for a text model", "there are images, and the policy reads text alone"
        )
    return Expanded(tuple(token_ids), ())


def check_sampled(uid: Uid, token_ids: NDArray[np.int32], images: ImageReader) -> None:
    """Refuse an answer with a token that stands for images: nobody could tell it from an image's own.

    Raises:
        RolloutError: the engine sampled one.
    """
    if wrong := set(images.tokens.never_sampled) & set(token_ids.tolist()):
        raise RolloutError(
            f"{uid}: the engine sampled token {min(wrong)}, which stands for an image; expected an engine that never "
            "samples it",
            code="engine/sampled-image",
        )
