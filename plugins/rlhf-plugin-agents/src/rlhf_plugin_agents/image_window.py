"""The last images of an episode as the policy sees them; older ones are a text in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core import ConfigError, EnvironmentFailure
from rlhf_core.contracts import RolloutContext
from rlhf_core.media import MediaRef

from .config import MultiTurnConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWindow:
    """The part of an episode's images that a turn shows."""

    last: int
    """Number of images that are shown, the last ones."""
    mark: tuple[int, ...]
    """Tokens in the place of each older one."""
    marker_id: int
    """Token in the place of each image, of which the processor makes all others."""
    beside: frozenset[int]
    """Tokens that stand for images and their edges; one on each side of a marker belongs to its image."""

    def applied(
        self, token_ids: Sequence[int], images: Sequence[MediaRef]
    ) -> tuple[list[int], Sequence[MediaRef]]:
        """Return tokens and images of which the older images are gone; what the policy wrote is as it was.

        Args:
            token_ids: all tokens of the episode, with one marker for each image.
            images: all images, in the order of their markers.
        """
        num_older = max(0, len(images) - self.last)
        shown: list[int] = []
        behind = 0
        places = [place for place, token in enumerate(token_ids) if token == self.marker_id]
        for place in places[:num_older]:
            shown += [*token_ids[behind : self._begin(token_ids, place, behind)], *self.mark]
            behind = self._end(token_ids, place)
        return [*shown, *token_ids[behind:]], images[num_older:]

    def check(self, images: Sequence[MediaRef]) -> None:
        """Refuse frames of a video, of which a marker stands for many.

        Raises:
            EnvironmentFailure: there is one.
        """
        if any(image.frame is not None for image in images):
            raise EnvironmentFailure(
                f"an observation has frames of a video, and rollout.multi_turn.last_images {self.last} leaves out "
                "single images; give the frames as images, or leave the option out",
                code="environment/frames-in-window",
            )

    def _begin(self, token_ids: Sequence[int], place: int, behind: int) -> int:
        return place - (place > behind and self._is_edge(token_ids[place - 1]))

    def _end(self, token_ids: Sequence[int], place: int) -> int:
        after = place + 1
        return after + (after < len(token_ids) and self._is_edge(token_ids[after]))

    def _is_edge(self, token: int) -> bool:
        return token in self.beside and token != self.marker_id


def window_of(config: MultiTurnConfig, context: RolloutContext) -> ImageWindow | None:
    """Return the window that the options ask for; None: every image is shown.

    Raises:
        ConfigError: the policy reads text alone, or no sequence may have so many images.
    """
    if config.last_images is None:
        return None
    if context.images is None:
        raise ConfigError(
            f"rollout.multi_turn.last_images {config.last_images}: the policy reads text alone, so no image is ever "
            "left out. Set --model.vision, or leave the option out",
            code="config/no-images-to-leave-out",
        )
    most = context.images.loader.limits.max_images
    if config.last_images > most:
        raise ConfigError(
            f"rollout.multi_turn.last_images {config.last_images}: a sequence has at most data.max_images {most}. Set "
            f"it to {most} or less, or raise --data.max_images",
            code="config/window-too-large",
        )
    tokens = context.images.tokens
    return ImageWindow(
        last=config.last_images,
        mark=tuple(context.renderer.encode(config.older_image)),
        marker_id=tokens.marker_id,
        beside=frozenset(tokens.never_sampled),
    )
