"""Frames of videos as models of Transformers take them, written without a video processor, which needs torchvision.

Frames have sizes that no processor changes, so that pixels are only scaled, and cut into patches here by a slow loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tests.plugins.vlm.vlm_material import Stage, own_pixels, turned

from rlhf_core.contracts import Action, Observation, StepResult, Task, TrajectoryColumns
from rlhf_core.media import MediaRef, MediaSpan, MediaStore, decode
from rlhf_testing.tiny_vision import MERGE, PATCH

MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
STD = np.array([0.26862954, 0.26130258, 0.27577711])
SIZES = ((24, 16), (16, 24), (8, 8), (32, 16))
"""Widths and heights of frames, in pixels: multiples of the side of a token."""
TOGETHER = 2


def clip(number: int, count: int, size: tuple[int, int] | None = None) -> list:
    """Frames that depend on a number, all of them different."""
    return [turned(number + 3 * one, size or SIZES[number % len(SIZES)]) for one in range(count)]


@dataclass
class Clips:
    """Shows a video at its reset, an image after the first turn, and another video after the second."""

    task: Task | None = None
    played: int = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task = task
        number = task.uid.prompt
        return self._shows(
            {"type": "video", "video": clip(number, 3 + number % 2), "fps": 1.5 + number}
        )

    async def step(self, action: Action) -> StepResult:
        self.played += 1
        number = self.task.uid.prompt + self.played
        shown = (
            {"type": "image", "image": turned(number, (24, 16))}
            if self.played == 1
            else {"type": "video", "video": clip(number + 1, 4), "timestamps": [0.5, 1, 1.5, 2]}
        )
        return StepResult(
            observation=self._shows(shown), reward=float(number), done=self.played == 3
        )

    async def close(self) -> None: ...

    def _shows(self, shown: dict) -> Observation:
        parts = [
            {"type": "text", "text": "see "},
            shown,
            {"type": "text", "text": f"{self.played}"},
        ]
        return Observation(messages=({"role": "user", "content": parts},))


def videos_of(spans: Sequence[MediaSpan]) -> list[list[MediaRef]]:
    """The frames of each video among images."""
    videos: list[list[MediaRef]] = []
    for span in spans:
        if span.image.frame is not None:
            if span.image.frame.index == 0:
                videos.append([])
            videos[-1].append(span.image)
    return videos


def written(frames: list[np.ndarray]) -> torch.Tensor:
    """Patches (N, C * T * P * P) of frames (H, W, C), token after token, and within a token row after row."""
    frames = [*frames, *frames[-1:] * (-len(frames) % TOGETHER)]
    height, width = frames[0].shape[:2]
    side = PATCH * MERGE
    patches = []
    for time in range(0, len(frames), TOGETHER):
        for top in range(0, height, side):
            for left in range(0, width, side):
                for y in range(top, top + side, PATCH):
                    for x in range(left, left + side, PATCH):
                        cubes = [
                            (one[y : y + PATCH, x : x + PATCH] / 255 - MEAN) / STD
                            for one in frames[time : time + TOGETHER]
                        ]
                        # (T, P, P, C) -> (C, T, P, P)
                        patches.append(np.stack(cubes).transpose(3, 0, 1, 2).reshape(-1))
    return torch.from_numpy(np.stack(patches)).float()


def own_inputs(stage: Stage, batch: TrajectoryColumns, row: int) -> dict[str, torch.Tensor]:
    """A row as models of Transformers take it, with ``videos=``."""
    spans, store = batch.media_of(row), MediaStore(stage.media)
    config = json.loads((stage.path / "config.json").read_text())
    tokens = torch.from_numpy(batch.tokens_of(row).astype(np.int64))[None]
    kinds = (tokens == config["image_token_id"]).int() + 2 * (
        tokens == config["video_token_id"]
    ).int()
    inputs = {"input_ids": tokens, "mm_token_type_ids": kinds}
    images = [decode(store.read(span.image)) for span in spans if span.image.frame is None]
    if images:
        inputs |= own_pixels(stage, images)
    videos = videos_of(spans)
    shown = [[np.asarray(decode(store.read(one))) for one in video] for video in videos]
    grids = [
        (-(-len(video) // TOGETHER), video[0].height // PATCH, video[0].width // PATCH)
        for video in videos
    ]
    inputs["pixel_values_videos"] = torch.cat([written(frames) for frames in shown])
    inputs["video_grid_thw"] = torch.tensor(grids)
    if config["model_type"] == "qwen2_5_vl":
        seconds = [TOGETHER / video[0].frame.rate for video in videos]
        inputs["second_per_grid_ts"] = torch.tensor(seconds)
    return inputs


def own_logits(stage: Stage, model, batch: TrajectoryColumns, row: int) -> torch.Tensor:
    """Log-probs (A,) of a row's actions by a model of Transformers, on the row alone."""
    logits = model(**own_inputs(stage, batch, row)).logits[0].float()
    never = torch.tensor(stage.family.tokens.never_sampled)
    logits = logits.index_fill(1, never, -torch.inf)
    columns = batch.tokens.read()
    mask = columns.action_mask[columns.token_offsets[row] : columns.token_offsets[row + 1]]
    actions = torch.from_numpy(batch.actions_of(row).astype(np.int64))
    found = logits.log_softmax(-1)[np.flatnonzero(mask) - 1]
    return found.gather(1, actions[:, None])[:, 0]
