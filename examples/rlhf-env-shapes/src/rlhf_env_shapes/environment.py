"""Questions about images.

    environment   [image] What color are the shapes?
    policy        red                       reward 1; the episode ends

With ``zoom`` the first image has no colors. The policy may ask for a quarter (``zoom top left``), and is shown it in
color; whoever does not ask has to guess. With ``style`` letters an answer is a letter, and a digit asks for a quarter.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

from rlhf_core.contracts import (
    Action,
    EnvironmentKind,
    EnvironmentManifest,
    Observation,
    StepResult,
    Task,
)

from .config import ShapesConfig
from .scenes import COLORS, KINDS, PLACES, Scene

NUM_EVAL = 128
"""Tasks of the split ``eval``."""
WORDS = {
    "color": "What color are the shapes that are not gray? Write one word.",
    "number": "How many shapes are not gray? Write a digit.",
    "place": "Where is a shape that is not gray? Write top or bottom, then left or right.",
    "kind": "What are the shapes that are not gray? Write one word.",
}
"""Questions; none has an answer in it."""
ZOOM = " You may first look closer once: write zoom, then top or bottom, then left or right."


class Shapes:
    """One episode: a scene and a question."""

    manifest = EnvironmentManifest(
        kind=EnvironmentKind.MULTI_TURN,
        reward_range=(0.0, 1.0),
        license="Apache-2.0",
        version="1",
    )

    def __init__(self, config: ShapesConfig) -> None:
        self._config = config
        self._scene: Scene
        self._question = ""
        self._has_zoomed = False

    def tasks(self, split: str) -> Iterator[Mapping[str, Any]]:
        """Return scenes with a question, without end in ``train``; no scene is in both splits.

        Raises:
            KeyError: there is no such split.
        """
        if split not in ("train", "eval"):
            raise KeyError(split)
        return self._drawn(split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Take the task's scene, or draw one, and ask about it."""
        row = task.row if "scene" in task.row else self._row("", random.Random(seed), None)
        self._scene, self._question = Scene.of(row["scene"]), str(row["question"])
        self._has_zoomed = False
        in_gray = self._config.zoom and bool(row.get("in_gray", True))
        image = self._scene.image(self._config.size, in_gray=in_gray)
        if self._config.style == "letters":
            return self._shown(image, self._question[0])
        return self._shown(image, WORDS[self._question] + (ZOOM if self._config.zoom else ""))

    async def step(self, action: Action) -> StepResult:
        """Judge an answer, or show a part of the scene that was asked for."""
        text = action.text if action.content is None else action.content
        place = self._asked_for(text)
        if place is not None:
            self._has_zoomed = True
            image = self._scene.part(place, self._config.size)
            words = "?" if self._config.style == "letters" else "Here it is. What is your answer?"
            return StepResult(observation=self._shown(image, words))
        right = self._is_right(text)
        metrics = {"right": float(right), "zoomed": float(self._has_zoomed)}
        return StepResult(reward=float(right), done=True, metrics=metrics)

    async def oracle(self) -> str:
        """Return a right answer, or what shows it."""
        if self._config.zoom and not self._has_zoomed:
            place = self._scene.places[0]
            return str(place) if self._config.style == "letters" else f"zoom {PLACES[place]}"
        return self._answers()[0]

    async def close(self) -> None:
        """Do nothing, since the environment holds nothing."""

    def _drawn(self, split: str) -> Iterator[Mapping[str, Any]]:
        draw = random.Random(f"shapes {split}")
        index = 0
        while split == "train" or index < NUM_EVAL:
            yield self._row(f"{split}-{index}", draw, split == "eval")
            index += 1

    def _row(self, key: str, draw: random.Random, held_out: bool | None) -> dict[str, Any]:
        config = self._config
        scene = Scene.drawn(
            draw,
            colors=config.colors,
            most=config.most,
            distractors=config.distractors,
            held_out=held_out,
        )
        row: dict[str, Any] = {
            "key": key,
            "scene": scene.fields(),
            "question": draw.choice(config.questions),
        }
        if config.zoom_share < 1 and not held_out:
            row["in_gray"] = draw.random() < config.zoom_share
        return row

    def _answers(self) -> list[str]:
        """Return all right answers."""
        scene = self._scene
        letters = self._config.style == "letters"
        match self._question:
            case "color":
                return [scene.color[0] if letters else scene.color]
            case "number":
                return [str(len(scene.places))]
            case "kind":
                return [scene.kind[0] if letters else scene.kind]
            case _:
                return [str(place) if letters else PLACES[place] for place in scene.places]

    def _is_right(self, text: str) -> bool:
        if self._config.style == "letters":
            return text[:1] in self._answers()
        # An answer that names several things is none.
        options = {"color": COLORS, "kind": KINDS, "place": PLACES, "number": "01234"}
        named = {
            word
            for word in options[self._question]
            if re.search(rf"\b{word}\b", text[-1000:].lower())
        }
        return len(named) == 1 and named <= set(self._answers())

    def _asked_for(self, text: str) -> int | None:
        """Return the quarter that a text asks to see; None: it asks for none, or may not any more."""
        if not self._config.zoom or self._has_zoomed:
            return None
        if self._config.style == "letters":
            found = re.match(r"[0-3]", text)
            return None if found is None else int(found[0])
        found = re.search(rf"\bzoom ({'|'.join(PLACES)})\b", text[-1000:].lower())
        return None if found is None else PLACES.index(found[1])

    def _shown(self, image: Any, words: str) -> Observation:
        parts: list[dict[str, Any]] = [{"type": "text", "text": words}]
        if self._config.image:
            # The file's bytes: equal images are equal, whoever compares them.
            file = BytesIO()
            image.save(file, "PNG")
            parts.insert(0, {"type": "image", "image": file.getvalue()})
        return Observation(messages=({"role": "user", "content": parts},))
