"""Random conversations of text and images, and what their sequences have to be: a slow reference, token by token.

Nothing here uses the code that it is compared with. A conversation is written as the tiny template writes it, a
character a token; an image has as many features as the model's own processor makes of its pixels; positions are those
of the model's own ``get_rope_index``.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import Image
from tests.images import noisy, saved
from tests.plugins.vlm.vlm_material import Stage, own_processor
from tests.plugins.vlm.written_images import FEATURE, WRITTEN_BY

from rlhf_core.contracts import Completion, Observation, StepResult, Stop
from rlhf_testing.tiny_vision import GEMMA_SIDE, MERGE, PATCH, QWEN, TILE, tiny_vision_tokenizer
from rlhf_testing.tiny_vision_families import GLM_FAMILIES

LETTERS = "abcdefgh0123456789"
BESIDE = {
    **dict.fromkeys(QWEN, ("<|vision_start|>", "<|vision_end|>")),
    **dict.fromkeys(GLM_FAMILIES, ("<|begin_of_image|>", "<|end_of_image|>")),
}
"""Words that the template writes around an image of families whose positions have rows and columns."""
GEMMA = ("gemma3", "gemma3n")
"""Families whose processor writes line breaks around an image."""
SIDES = (5, 8, 13, 16, 24, 33, 40)
"""Widths and heights, in pixels."""


@dataclass(frozen=True)
class Expected:
    """One token of a sequence."""

    token: int
    image: int | None = None
    """Number of the image whose token it is, among those of the sequence."""
    feature: int | None = None
    """Number of the feature on it, among those of the image."""
    is_learned: bool = False


@dataclass
class Sequence:
    """Tokens of a sequence, and its images."""

    tokens: list[Expected] = field(default_factory=list)
    images: list[Image.Image] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [one.token for one in self.tokens]

    def cut(self, limit: int) -> Self:
        """The first tokens; an image of which some would be cut off goes as a whole."""
        kept = list(self.tokens)
        while len(kept) > limit or (
            kept
            and kept[-1].image is not None
            and len(kept) < len(self.tokens)
            and self.tokens[len(kept)].image == kept[-1].image
        ):
            kept.pop()
        numbers = {one.image for one in kept} - {None}
        return type(self)(kept, [self.images[number] for number in sorted(numbers)])


class Writer:
    """Writes sequences as the model of a family reads them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._processor = own_processor(stage)
        self._made: dict[object, dict[str, torch.Tensor]] = {}
        config = json.loads((stage.path / "config.json").read_text())
        self.family = config["model_type"]
        self.tokenizer = tiny_vision_tokenizer(family=self.family)
        self.feature_id = config.get("image_token_id", config.get("image_token_index"))

    def text(self, words: str, *, is_learned: bool = False) -> list[Expected]:
        ids = self.tokenizer(words, add_special_tokens=False)["input_ids"]
        return [Expected(one, is_learned=is_learned) for one in ids]

    def pixels(self, image: Image.Image) -> dict[str, torch.Tensor]:
        """What the model's own processor makes of an image."""
        key = (image.size, image.tobytes())
        if key not in self._made:
            made = self._processor(images=[image], return_tensors="pt")
            names = made.keys() & {"pixel_values", "image_grid_thw"}
            self._made[key] = {name: made[name] for name in names}
            pixels = made["pixel_values"]
            # Some processors put the tiles of an image into a list of those of all.
            self._made[key]["pixel_values"] = pixels[0] if pixels.dim() == 5 else pixels
        return self._made[key]

    def num_features(self, image: Image.Image) -> int:
        pixels = self.pixels(image)
        if "image_grid_thw" in pixels:
            return int(pixels["image_grid_thw"].prod()) // MERGE**2
        if self.family == "gemma3n":  # its encoder halves the sides five times
            return (pixels["pixel_values"].shape[-1] // 2**5) ** 2
        side = {"gemma3": GEMMA_SIDE, "internvl": TILE}.get(
            self.family, pixels["pixel_values"].shape[-1]
        )
        return len(pixels["pixel_values"]) * (side // (PATCH * MERGE)) ** 2

    def image(self, image: Image.Image, number: int) -> list[Expected]:
        if self.family in WRITTEN_BY:
            return self._written(WRITTEN_BY[self.family](self._processor, image), number)
        features = [
            Expected(self.feature_id, number, index) for index in range(self.num_features(image))
        ]
        if self.family in BESIDE:
            # The words around an image are the template's, and none of the image's own tokens.
            before, after = BESIDE[self.family]
            return [*self.text(before), *features, *self.text(after)]
        before, after = {
            "internvl": ("<img>", "</img>"),
            **dict.fromkeys(GEMMA, ("<start_of_image>", "<end_of_image>")),
        }.get(self.family, ("", ""))
        own = [
            [Expected(one.token, number) for one in self.text(words)] for words in (before, after)
        ]
        # The line breaks around an image of Gemma are the processor's text.
        beside = self.text("\n\n") if self.family in GEMMA else []
        return [*beside, *own[0], *features, *own[1], *beside]

    def _written(self, words: list[str | None], number: int) -> list[Expected]:
        """The tokens of an image's words, with its features counted."""
        made: list[Expected] = []
        features = itertools.count()
        for word in words:
            if word is FEATURE:
                made.append(Expected(self.feature_id, number, next(features)))
            else:
                made += [Expected(one.token, number) for one in self.text(word)]
        return made

    def conversation(self, messages: list[Message], *, asks: bool = False) -> Sequence:
        """A conversation in the template's words; ``asks``: with the words before the next answer."""
        whole = Sequence()
        for message in messages:
            learned = message.role == "assistant"
            whole.tokens += self.text(f"<|im_start|>{message.role}\n")
            for part in message.parts:
                if isinstance(part, str):
                    whole.tokens += self.text(part, is_learned=learned)
                else:
                    whole.tokens += self.image(part, len(whole.images))
                    whole.images.append(part)
            whole.tokens += self.text("<|im_end|>", is_learned=learned) + self.text("\n")
        if asks:
            whole.tokens += self.text("<|im_start|>assistant\n")
        return whole

    @cached_property
    def _model(self):
        from transformers import AutoConfig, AutoModelForImageTextToText

        with torch.device("meta"):
            config = AutoConfig.from_pretrained(self._stage.path)
            return AutoModelForImageTextToText.from_config(config).base_model

    def positions(self, sequence: Sequence) -> torch.Tensor:
        """Positions (T,) or (3, T) by the model's own code."""
        if self.family not in BESIDE:
            return torch.arange(len(sequence.tokens))
        ids = torch.tensor([sequence.ids])
        grids = [self.pixels(image)["image_grid_thw"] for image in sequence.images]
        kinds = (ids == self.feature_id).int()
        grid = torch.cat(grids) if grids else None
        return self._model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)[0][
            :, 0
        ]


@dataclass(frozen=True)
class Message:
    role: str
    parts: tuple[str | Image.Image, ...]

    def given(self) -> dict:
        """The message as a row or an environment has it."""
        if self.role == "assistant":
            return {"role": self.role, "content": "".join(map(str, self.parts))}
        return {"role": self.role, "content": [_given(part) for part in self.parts]}


def _given(part: str | Image.Image) -> dict:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "image": {"base64": base64.b64encode(saved(part)).decode()}}


def random_image(draw: random.Random) -> Image.Image:
    size = draw.choice(SIDES), draw.choice(SIDES)
    image = noisy(*size).rotate(90 * draw.randrange(4)).resize(size)
    shift = draw.randrange(256)
    return image.point(lambda value: (value + shift) % 256)


def random_words(draw: random.Random) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(1, 6)))


def asked(draw: random.Random, most: int = 3) -> Message:
    """A message of the user: texts with images before, between and behind them."""
    parts: list[str | Image.Image] = [random_words(draw)]
    for _ in range(draw.randint(0, most)):
        parts.append(random_image(draw))
        if draw.random() < 0.6:
            parts.append(random_words(draw))
    if draw.random() < 0.5:
        parts = parts[1:] or parts
    return Message("user", tuple(parts))


def conversation(draw: random.Random) -> list[Message]:
    messages = []
    for _ in range(draw.randint(1, 3)):
        messages += [asked(draw), Message("assistant", (random_words(draw),))]
    return messages


def limit_of(draw: random.Random, whole: Sequence) -> int:
    """A number of tokens that leaves one to learn: nothing is cut, anything is, or just around an image."""
    first = next(index for index, one in enumerate(whole.tokens) if one.is_learned)
    edges = [
        index + more
        for index, one in enumerate(whole.tokens)
        if one.image is not None
        and (
            whole.tokens[index - 1].image != one.image or whole.tokens[index + 1].image != one.image
        )
        for more in (0, 1)
    ]
    able = [edge for edge in edges if edge > first]
    match draw.randrange(4):
        case 0:
            return len(whole.tokens)
        case 1:
            return draw.randint(first + 1, len(whole.tokens))
    return draw.choice(able) if able else draw.randint(first + 1, len(whole.tokens))


class Scripted:
    """An engine that answers with what was written for it, and ends each answer."""

    def __init__(self, writer: Writer, answers: dict[tuple[int, int, int], str]) -> None:
        self._writer, self._answers = writer, answers

    async def generate(self, request) -> list[Completion]:
        made = []
        for sample in range(len(request.seeds)):
            name = (request.uid.prompt, request.uid.sample + sample, request.turn)
            ids = [one.token for one in self._writer.text(self._answers[name] + "<|im_end|>")]
            made.append(
                Completion(
                    token_ids=np.array(ids, dtype=np.int32),
                    logprobs=np.zeros(len(ids), dtype=np.float32),
                    weight_version=np.zeros(len(ids), dtype=np.int32),
                    stop=Stop.EOS,
                )
            )
        return made


class Shown:
    """An environment that shows what was made for its task, message by message."""

    def __init__(self, shown: dict[int, list[Message]]) -> None:
        self._shown = shown

    async def reset(self, task, seed: int) -> Observation:
        self._rest = iter(self._shown[task.uid.prompt])
        return Observation(messages=(next(self._rest).given(),))

    async def step(self, action) -> StepResult:
        message = next(self._rest, None)
        if message is None:
            return StepResult(reward=1.0, done=True)
        return StepResult(observation=Observation(messages=(message.given(),)))

    async def close(self) -> None: ...


def write_row(folder: Path, messages: list[Message]) -> Path:
    file = folder / "row.jsonl"
    file.write_text(json.dumps({"messages": [message.given() for message in messages]}) + "\n")
    return file
