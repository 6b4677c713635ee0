"""A model of the Qwen-VL families with one fault in what it sees, for ``benchmarks/audits.py``: own code from a picture
to patches, none of it shared with ``rlhf audit`` or Transformers' processors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import PreTrainedModel

Picture = NDArray[np.float64]
"""(H, W, 3) colors of 0 to 255."""
Tiles = list[tuple[int, int]]
"""Row and column of each patch, in the order in which the model gets them."""


@dataclass(frozen=True, slots=True)
class Eye:
    """What a model does to see."""

    patch: int
    merge: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    scale: float = 255.0
    order: Callable[[Tiles], Tiles] = list
    look: Callable[[Picture], Picture] = np.asarray
    step: int = 0
    """Places in the step's list of images from the image to the one that is seen."""
    blind: bool = False

    def patches(self, picture: Picture) -> tuple[torch.Tensor, tuple[int, int]]:
        """Return the patches of a picture, each twice as a frame of two, and the numbers of their rows and columns."""
        colors = (self.look(picture) / self.scale - self.mean) / self.deviation
        rows, columns = (side // self.patch for side in picture.shape[:2])
        tiles = [
            (row + down, column + right)
            for row in range(0, rows, self.merge)
            for column in range(0, columns, self.merge)
            for down in range(self.merge)
            for right in range(self.merge)
        ]
        found = []
        for row, column in self.order(tiles):
            top, left = row * self.patch, column * self.patch
            tile = colors[top : top + self.patch, left : left + self.patch]  # (p, p, 3)
            found.append(np.stack([tile, tile]).transpose(3, 0, 1, 2).ravel())
        return torch.from_numpy(np.array(found)).float(), (rows, columns)

    def logprobs(
        self, model: PreTrainedModel, ids: Sequence[int], pictures: Sequence[Picture]
    ) -> torch.Tensor:
        """Return (T, V) log-probs, row t those of token t + 1."""
        config = model.config
        tokens = torch.tensor([ids])
        is_image = tokens == config.image_token_id
        given = {"input_ids": tokens, "mm_token_type_ids": is_image.int()}
        if pictures:
            made = [self.patches(each) for each in pictures]
            given["image_grid_thw"] = torch.tensor([[1, *grid] for _, grid in made])
            if not self.blind:
                given["pixel_values"] = torch.cat([each for each, _ in made])
        logits = model(**given, use_cache=False).logits[0]
        logits[:, [config.image_token_id, config.video_token_id]] = -torch.inf
        return logits.log_softmax(-1)


def eye_of(folder: Path, **fault: object) -> Eye:
    """Return the eye that the processor's file of a model describes, with a fault."""
    file = folder / "preprocessor_config.json"
    file = file if file.exists() else folder / "processor_config.json"
    values = json.loads(file.read_text())
    values = values.get("image_processor", values)
    own = {
        "patch": values["patch_size"],
        "merge": values["merge_size"],
        "mean": tuple(values["image_mean"]),
        "deviation": tuple(values["image_std"]),
    }
    return Eye(**own | fault)


def faults_of(draw: Random) -> dict[str, tuple[str, dict[str, object]]]:
    """Return the faults of a seed: fault -> its words, and what is other in ``Eye``."""
    orders: dict[str, Callable[[Tiles], Tiles]] = {
        "row by row": sorted,
        "reversed": lambda tiles: tiles[::-1],
    }
    colors: dict[str, dict[str, object]] = {
        "not normalized": {"mean": (0.0,) * 3, "deviation": (1.0,) * 3},
        "0 to 255": {"scale": 1.0},
        "by 0.5": {"mean": (0.5,) * 3, "deviation": (0.5,) * 3},
        "red and blue exchanged": {"look": lambda picture: picture[..., ::-1]},
    }
    missing: dict[str, dict[str, object]] = {
        "none": {"blind": True},
        "black": {"look": np.zeros_like},
    }
    order, color, none = (draw.choice(list(each)) for each in (orders, colors, missing))
    step = draw.choice([-2, -1, 1, 2])
    return {
        "pixels: order of patches": (order, {"order": orders[order]}),
        "pixels: colors": (color, colors[color]),
        "pixels: another row's": (f"the image {step:+d}", {"step": step}),
        "pixels: missing": (none, missing[none]),
    }


def opened(path: Path) -> Picture:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float64)
