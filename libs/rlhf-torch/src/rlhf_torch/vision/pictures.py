"""Images of sequences as a model takes them: read from the run's store by reference, and compared with their tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import DataError, PluginError
from rlhf_core.contracts import VisionSpec
from rlhf_core.media import (
    FrameTokens,
    MediaProblem,
    MediaRef,
    MediaSpan,
    MediaStore,
    as_shown,
    check_frames,
    decode,
    seen_together,
)
from rlhf_core.plugins import Plugins

from ..packed.packing import Blocks
from .family import Picture, TorchVision, VideoFamily, VisionFamily

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 32
"""Pixels of the side of the image that stands in, which the model's processor brings to a size of its own."""
ROOM = 512 * 2**20
"""Bytes of pictures that are kept; the groups of a step read the same ones again and again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenRow:
    """One sequence with its images."""

    positions: Tensor
    """(T,) or (3, T)"""
    pictures: tuple[Picture, ...]
    """Pixels of each image; frames of a video that the model sees as one are one picture."""
    identities: tuple[str, ...]
    """Name of each picture: two of one name are the same."""
    places: tuple[NDArray[np.int64], ...]
    """Index of the token of each feature, for each picture; of the last features where the first are not there."""
    shift: int
    """Number that is added to the index of a token behind the sequence to get its position."""

    def behind(self, known: int) -> SeenRow:
        """Return what is behind the first ``known`` tokens: their positions, and the images that have features there.

        ``shift`` stays: it is for indices in the whole sequence.
        """
        left = [own[own >= known] - known for own in self.places]
        seen = [number for number, own in enumerate(left) if len(own)]
        return replace(
            self,
            positions=self.positions[..., known:],
            pictures=tuple(self.pictures[number] for number in seen),
            identities=tuple(self.identities[number] for number in seen),
            places=tuple(left[number] for number in seen),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedImages:
    """Different images of packed rows, and the tokens on which their features stand."""

    pictures: tuple[Picture, ...]
    """Each image once, however many rows have it."""
    places: Tensor
    """(n,) index in the row of each token that has a feature."""
    sources: Tensor
    """(n,) index of its feature, among those of all pictures one after the other."""


class PictureReader:
    """Reads the images of a run for one model.

    Args:
        store: the run's images.
    """

    def __init__(self, family: VisionFamily, store: MediaStore) -> None:
        self.family = family
        self._store = store
        self._kept: OrderedDict[str, Picture] = OrderedDict()
        self._bytes = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> PictureReader:
        """Return the reader itself: copies of a model read the same images."""
        return self

    def row(
        self, token_ids: Sequence[int] | NDArray[np.int32], spans: Sequence[MediaSpan], where: str
    ) -> SeenRow:
        """Return a sequence's images and positions.

        Args:
            where: name of the sequence, for messages.

        Raises:
            PluginError: the tokens of an image are not those that the processor gives it.
            DataError: an image is gone from the store, or was changed.
        """
        tokens = np.asarray(token_ids)
        seen = list(seen_together(spans))
        firsts = [first for first, _ in seen]
        pictures = tuple(self.picture(*images) for _, images in seen)
        expected = self._expected([span.image for span in spans], where)
        places = tuple(
            self._places(tokens, span, picture, own, where)
            for span, picture, own in zip(firsts, pictures, expected, strict=True)
        )
        found = int(np.isin(tokens, self._feature_ids).sum())
        count = sum(map(len, places))
        if found != count:
            raise PluginError(
                f"{where}: {found} tokens stand for features of images, and its {len(spans)} images have {count}; "
                "expected as many. Were the images expanded twice, or were some lost?",
                code="image/number-of-tokens",
            )
        # One token more: behind a video its number is not always the largest position plus one.
        positions = self.family.positions(len(tokens) + 1, firsts, pictures)
        return SeenRow(
            positions=positions[..., :-1],
            pictures=pictures,
            identities=tuple(_identity(images) for _, images in seen),
            places=places,
            shift=int(positions[..., -1].max()) - len(tokens),
        )

    @cached_property
    def _feature_ids(self) -> list[int]:
        of_videos = getattr(self.family.tokens, "video_marker_id", self.family.feature_id)
        return [self.family.feature_id, of_videos]

    def _expected(self, images: Sequence[MediaRef], where: str) -> list[tuple[int, ...]]:
        """Return the tokens that the processor gives each picture, by sizes alone."""
        own: list[tuple[int, ...]] = []
        try:
            check_frames(images, self.family.tokens)
            for shown in as_shown(images):
                if shown[0].frame is None:
                    own.append(self.family.tokens.tokens_of(shown[0]))
                else:
                    own += cast(FrameTokens, self.family.tokens).tokens_of_frames(shown)
        except MediaProblem as problem:
            raise PluginError(f"{where}: {problem}", code="image/tokens-differ") from problem
        return own

    def blocks(
        self, rows: Iterable[tuple[int, SeenRow]], num_tokens: int, device: torch.device
    ) -> Blocks | None:
        """Return the blocks of ``image_blocks`` if the family looks ahead within images; None: all tokens look back."""
        numbers = image_blocks(rows, num_tokens) if self.family.looks_ahead else None
        in_windows = getattr(self.family, "looks_ahead_in_windows", False)
        return None if numbers is None else Blocks(numbers.to(device), in_windows)

    def stand_in(self, device: torch.device) -> PackedImages:
        """Return the images of a row that has none: one small image, from which no token takes features, so that its
        gradient is zero."""
        nowhere = torch.zeros(0, dtype=torch.int64, device=device)
        return PackedImages(pictures=(self._small,), places=nowhere, sources=nowhere)

    @cached_property
    def _small(self) -> Picture:
        from PIL import Image as images

        return self.family.picture(images.new("RGB", (SIDE, SIDE)))

    def picture(self, *images: MediaRef) -> Picture:
        """Return an image of the store, or frames that are seen as one, as the model takes them.

        Raises:
            DataError: an image is gone from the store, was changed, or is damaged.
        """
        name = _identity(images)
        kept = self._kept.get(name)
        if kept is not None:
            self._kept.move_to_end(name)
            return kept
        first, shown = images[0], [self._decoded(image) for image in images]
        if first.frame is None:
            picture = self.family.picture(shown[0], first.limits)
        else:
            picture = cast(VideoFamily, self.family).frames(shown, first)
        self._kept[name] = picture
        self._bytes += picture.num_bytes
        while self._bytes > ROOM and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.num_bytes
        return picture

    def _decoded(self, image: MediaRef) -> Image:
        content = self._store.read(image)
        try:
            return decode(content)
        except MediaProblem as problem:
            raise DataError(
                f"{self._store.path(image).resolve()}: {problem}", code="image/unreadable"
            ) from problem

    def _places(
        self,
        tokens: NDArray[np.int32],
        span: MediaSpan,
        picture: Picture,
        expected: tuple[int, ...],
        where: str,
    ) -> NDArray[np.int64]:
        """Return the tokens of a picture's features.

        The tokens were made from the image's size, before any pixel was looked at; here they meet the pixels.
        """
        own = tokens[span.start : span.end]
        places = span.start + np.flatnonzero(np.isin(own, self._feature_ids))
        if tuple(own.tolist()) != expected or len(places) != picture.num_features:
            raise PluginError(
                f"{where}: the image {span.image.sha256[:12]} has {len(places)} tokens for features among its "
                f"{len(own)}, from {span.start} on, and the processor gives it {picture.num_features} among "
                f"{len(expected)}; expected the same tokens. Were they made by another processor, or expanded twice?",
                code="image/tokens-differ",
            )
        return places


def _identity(images: Sequence[MediaRef]) -> str:
    return "+".join(image.identity for image in images)


def packed_images(rows: Iterable[tuple[int, SeenRow]], device: torch.device) -> PackedImages | None:
    """Return the images of rows that are packed one after the other; None: they have none.

    Args:
        rows: each row with the index of its first token.
    """
    pictures: dict[str, Picture] = {}
    starts: dict[str, int] = {}
    places, sources = [], []
    count = 0
    for first, row in rows:
        for name, picture, own in zip(row.identities, row.pictures, row.places, strict=True):
            if name not in pictures:
                pictures[name], starts[name] = picture, count
                count += picture.num_features
            places.append(own + first)
            end = starts[name] + picture.num_features
            sources.append(np.arange(end - len(own), end))
    if not pictures:
        return None
    return PackedImages(
        pictures=tuple(pictures.values()),
        places=torch.from_numpy(np.concatenate(places)).to(device),
        sources=torch.from_numpy(np.concatenate(sources)).to(device),
    )


def image_blocks(rows: Iterable[tuple[int, SeenRow]], num_tokens: int) -> Tensor | None:
    """Return for each token of packed rows (N,) the number of the image whose feature stands on it, -1 for others;
    None: the rows have no images.

    Args:
        rows: each row with the index of its first token, among ``num_tokens``.
    """
    blocks = np.full(num_tokens, -1)
    number = 0
    for first, row in rows:
        for own in row.places:
            blocks[own + first] = number
            number += 1
    return torch.from_numpy(blocks) if number else None


def kept_images(images: PackedImages, kept: Tensor, num_tokens: int) -> PackedImages:
    """Return the images of a row of which some tokens are left out, because others stand for them.

    Args:
        kept: (N,) rising indices of the tokens that stay, among ``num_tokens``.
    """
    source_of = torch.full((num_tokens,), -1, device=kept.device)
    source_of[images.places] = images.sources
    left = source_of[kept]
    places = (left >= 0).nonzero()[:, 0]
    return PackedImages(pictures=images.pictures, places=places, sources=left[places])


def open_reader(
    spec: VisionSpec, model_path: str, plugins: Plugins, *, trust_remote_code: bool
) -> PictureReader:
    """Return the reader of a run's images for the model of a path.

    Raises:
        ConfigError: the model reads no images, or its processor is another model's.
        PluginError: the chosen component is not made for torch.
    """
    vision: TorchVision = plugins.build(spec.component)
    if not hasattr(vision, "family"):
        raise PluginError(
            f"--model.vision {spec.component.name} is not made for the torch backend and the embedded engine: it has "
            "no method family (rlhf_torch.vision.family). Choose one that has it, such as --model.vision vlm",
            code="plugin/no-torch-part",
        )
    family = vision.family(model_path, trust_remote_code=trust_remote_code)
    return PictureReader(family, MediaStore(Path(spec.media_folder)))
