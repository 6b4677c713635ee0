"""Vision tower without closed forms: a pass of Transformers' own code over images without numbers.

Operations and bytes of small images tell those of every size, since they grow with the features and, within an
image that is read whole, with their pairs. Tiles have one size, and cost the same whatever they show.
"""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from .making import refused
from .precision import BFLOAT16, Precision
from .without_numbers import (
    attention_operations,
    kept_bytes,
    numbers_of_inputs,
    storage,
    without_numbers,
)

SIDES = (8, 16, 24)
"""Features of a side of the images that are passed, where a tower reads images of every size."""
IMAGES = (1, 2)
"""Numbers of images that are passed where a tower reads tiles. What the second adds is without casts of weights."""
INTERNVL_TILES = 13
"""Tiles of InternVL's largest image: 12, the ``max_patches`` of its image processor, and the whole image."""


Inputs = dict[str, Any]
"""Arguments of ``get_image_features``: an image with numbers."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Costs of the images of one pass."""

    features: int
    flops: int
    """Operations of a forward pass."""
    kept: int
    """Bytes that a forward pass keeps for its backward pass."""
    widest: int
    """Bytes at the widest point of a pass without gradients."""


class MeasuredTower:
    """Vision tower and projector of a model, whose passes are counted when they are asked for.

    Args:
        model: returns the model on the meta device for a type of its parameters.
        form: returns an image of so many features a side; of tiles so many equal images.
        tiles: number of tiles of one of these; 0: images are read whole.
        most: number of these that the largest image is as large as; 0: it is not known.
        masks_pairs: all images of a pass stand in one sequence, with a mask of all its pairs.
        largest: returns the features of the largest image for an area in pixels; None where it is not known.
        source: name of the config.json for messages.
    """

    def __init__(
        self,
        model: Callable[[str], Any],
        form: Callable[[int], Inputs],
        *,
        tiles: int = 0,
        most: int = 0,
        masks_pairs: bool = False,
        largest: Callable[[int | None], int | None] = lambda _: None,
        source: str,
    ) -> None:
        self._model, self._form, self._tiles, self._largest = model, form, tiles, largest
        self._most = most
        self._source = source
        self._masks_pairs = masks_pairs
        self._seen: dict[Precision, list[Seen]] = {}

    def flops(self, image_tokens: int) -> int:
        """Return the operations of a forward pass over one image with this many features."""
        if not image_tokens:
            return 0
        images = self._images(BFLOAT16)
        flops = [each.flops for each in images]
        if self._tiles:
            return self._tiles_of(image_tokens) * (flops[1] - flops[0]) // self._tiles
        return round(_through(images, flops, image_tokens))

    def kept_bytes(self, image_tokens: int, precision: Precision) -> float:
        """Return the bytes that a pass keeps of images with this many features, where all of the tower is trained."""
        return self._grown(image_tokens, precision, [each.kept for each in self._images(precision)])

    def widest_bytes(self, image_tokens: int, precision: Precision) -> float:
        """Return the bytes of images with this many features at the widest point of a pass without gradients."""
        return self._grown(
            image_tokens, precision, [each.widest for each in self._images(precision)]
        )

    def image_tokens(self, pixels: int | None) -> int | None:
        """Return the number of features of the largest image; None: a model's configuration does not tell it.

        Args:
            pixels: largest area of an image; None: any.
        """
        if self._most:
            return self._most * self._images(BFLOAT16)[0].features
        return self._largest(pixels)

    def _tiles_of(self, image_tokens: int) -> int:
        return -(-image_tokens * self._tiles // self._images(BFLOAT16)[0].features)

    def _grown(self, image_tokens: int, precision: Precision, sizes: Sequence[int]) -> float:
        """Return bytes by the tile, by pairs, or by what a larger image takes more."""
        images = self._images(precision)
        if self._tiles:
            return self._tiles_of(image_tokens) * (sizes[1] - sizes[0]) / self._tiles
        if self._masks_pairs:
            return _through(images, sizes, image_tokens)
        return image_tokens * (sizes[1] - sizes[0]) / (images[1].features - images[0].features)

    def _images(self, precision: Precision) -> list[Seen]:
        """Return what images of three sizes cost; of tiles one image and two.

        Raises:
            ConfigError: the tower cannot read an image.
        """
        if precision not in self._seen:
            with without_numbers(precision):
                model = self._model(precision.parameters)
                model.to_empty(device="cpu").tie_weights()
                sizes = IMAGES if self._tiles else SIDES
                try:
                    seen = [_seen(model, self._form, size) for size in sizes]
                except Exception as error:  # of any type: each tower checks its values as it reads
                    expected = f"{self._source}: expected sizes of an image in vision_config"
                    raise refused(error, expected) from error
                self._seen[precision] = seen
        return self._seen[precision]


def _through(images: Sequence[Seen], values: Sequence[int], image_tokens: int) -> float:
    """Return ``a t + b t^2`` for ``t = image_tokens`` of the values ``c + a t + b t^2`` of three images: c is of casts
    of weights."""
    t = [each.features for each in images]
    slopes = [(values[n + 1] - values[n]) / (t[n + 1] - t[n]) for n in (0, 1)]
    pairs = (slopes[1] - slopes[0]) / (t[2] - t[0])
    each = slopes[0] - pairs * (t[0] + t[1])
    return (each + pairs * image_tokens) * image_tokens


def tower_of(model: Any, make: Callable[[str], Any], source: str) -> MeasuredTower | None:
    """Return the tower of a model by the arguments that its images take; None: it has no images of a known form.

    Args:
        make: returns the model on the meta device for a type of its parameters.
        source: name of the config.json for messages.
    """
    of = partial(MeasuredTower, make, source=source)
    base, config = model.base_model, model.config
    vision = getattr(config, "vision_config", None)
    if vision is None or not hasattr(base, "get_image_features"):
        return None
    if hasattr(getattr(base, "vision_tower", None), "timm_model"):
        return _of_timm(base, config.vision_soft_tokens_per_image, of)
    takes = inspect.signature(base.get_image_features).parameters
    patch = getattr(vision, "patch_size", None)
    if patch is None:
        return None
    if "image_grid_thw" in takes:
        edge = patch * vision.spatial_merge_size
        return of(lambda side: _in_a_grid(vision, side), largest=_of_area(edge))
    if "image_position_ids" in takes:
        return of(lambda side: _with_positions(vision, side))
    if hasattr(config, "image_grid_pinpoints"):
        return of(lambda number: _of_tiles(config, number), tiles=_tiles(config), most=1)
    if hasattr(config, "spatial_merge_size"):
        edge = patch * config.spatial_merge_size
        most = (vision.image_size // edge) ** 2
        return of(lambda side: _in_a_square(edge, side), masks_pairs=True, largest=lambda _: most)
    if getattr(vision, "image_size", None) is None:
        return None
    several = "pixel_attention_mask" in takes
    most = INTERNVL_TILES if config.model_type == "internvl" else int(not several)
    return of(lambda number: _of_one_tile(vision, number, several=several), tiles=1, most=most)


def _of_timm(base: Any, tokens: int, of: Callable[..., MeasuredTower]) -> MeasuredTower | None:
    """Return the tower of a model that has an encoder of timm; None: an image of the encoder's own size is not what the
    model reads, which only its processor knows.

    Args:
        tokens: number of the features of an image.
        of: makes a tower of the model.
    """
    import torch

    _, *sides = base.vision_tower.timm_model.pretrained_cfg["input_size"]
    pixels = torch.ones(1, 3, *sides, dtype=base.dtype)
    read = base.vision_tower(pixel_values=pixels, do_pooling=False, return_dict=True)
    if read.last_hidden_state.shape[2:].numel() != tokens:
        return None

    def form(number: int) -> Inputs:
        return {"pixel_values": torch.ones(number, 3, *sides)}

    return of(form, tiles=1, largest=lambda _: tokens)


def _of_area(edge: int) -> Callable[[int | None], int | None]:
    return lambda pixels: None if pixels is None else max(1, pixels // edge**2)


def _in_a_grid(vision: Any, side: int) -> Inputs:
    """Return an image whose patches stand in one row of tensors, beside the grid from which they come."""
    import torch

    patches = side * vision.spatial_merge_size
    inputs = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.ones(patches**2, inputs)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, patches, patches]])}


def _with_positions(vision: Any, side: int) -> Inputs:
    """Return an image whose patches have their columns and rows beside them."""
    import torch

    patches = torch.arange(side * vision.pooling_kernel_size)
    rows, columns = torch.meshgrid(patches, patches, indexing="ij")
    places = torch.stack((columns.flatten(), rows.flatten()), dim=-1)[None]
    pixels = torch.ones(1, places.shape[1], 3 * vision.patch_size**2)
    return {"pixel_values": pixels, "image_position_ids": places}


def _in_a_square(edge: int, side: int) -> Inputs:
    import torch

    size = side * edge
    sizes = torch.tensor([[size, size]])
    return {"pixel_values": torch.ones(1, 3, size, size), "image_sizes": sizes}


def _largest(config: Any) -> tuple[int, int]:
    """Return height and width, in pixels, of the largest image that a model cuts into tiles."""
    height, width = max(config.image_grid_pinpoints, key=lambda sides: sides[0] * sides[1])
    return height, width


def _tiles(config: Any) -> int:
    """Return the number of tiles of the largest image, and of the whole beside them."""
    size: int = config.vision_config.image_size
    height, width = _largest(config)
    return 1 + (height // size) * (width // size)


def _of_tiles(config: Any, number: int) -> Inputs:
    """Return so many of the largest images that a model cuts into tiles."""
    import torch

    size = config.vision_config.image_size
    pixels = torch.ones(number, _tiles(config), 3, size, size)
    return {"pixel_values": pixels, "image_sizes": torch.tensor([_largest(config)] * number)}


def _of_one_tile(vision: Any, number: int, *, several: bool) -> Inputs:
    """Return so many images of one tile.

    Args:
        several: the model takes the tiles of an image on an axis of their own.
    """
    import torch

    size = vision.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    pixels = torch.ones(number, 3, height, width)
    return {"pixel_values": pixels[None] if several else pixels}


def _seen(model: Any, form: Callable[[int], Inputs], size: int) -> Seen:
    """Return what the images of a form cost, within ``without_numbers``."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils.flop_counter import FlopCounterMode

    with unset_fake_temporarily():
        inputs = form(size)
        inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)

    def read() -> Any:
        return model.base_model.get_image_features(**inputs, return_dict=True).pooler_output

    with numbers_of_inputs():
        kept = kept_bytes(model, read)
        with torch.no_grad(), widest() as live:
            read()
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), attention_operations() as attention, counter:
            found = read()
    parts = found if isinstance(found, list | tuple) else (found,)
    features = sum(part.shape[:-1].numel() for part in parts)
    flops = counter.get_total_flops() + sum(attention)
    return Seen(features, flops, kept, live.most)


@dataclass(slots=True)
class Live:
    """Bytes of storages that operations made."""

    now: int = 0
    """Bytes that are live."""
    most: int = 0
    """Most bytes that were live at once."""


@contextmanager
def widest() -> Iterator[Live]:
    """Return a context that counts the bytes of tensors which operations within it make, from the first tensor of a
    storage to the end of its last one. Without gradients they end as on a GPU."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    live, holders = Live(), Counter[int]()

    def drop(at: int, size: int) -> None:
        holders[at] -= 1
        if not holders[at]:
            live.now -= size

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            known = {
                storage(part)
                for part in tree_leaves((args, kwargs or {}))
                if isinstance(part, torch.Tensor)
            }
            output = func(*args, **(kwargs or {}))
            for part in tree_leaves(output):
                if not isinstance(part, torch.Tensor):
                    continue
                at, size = storage(part), part.untyped_storage().nbytes()
                if holders[at] == 0:
                    if at in known:  # a view of a weight or of the pixels
                        continue
                    live.now += size
                holders[at] += 1
                weakref.finalize(part, drop, at, size)
            live.most = max(live.most, live.now)
            return output

    with Counted():  # type: ignore[no-untyped-call]
        yield live
