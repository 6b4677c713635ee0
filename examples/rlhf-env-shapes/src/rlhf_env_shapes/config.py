"""Options of ``shapes``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Config

Question = Literal["color", "number", "place", "kind"]


class ShapesConfig(Config):
    """Scenes, questions, and the way in which they are put."""

    questions: tuple[Question, ...] = Field(
        ("color", "number", "place", "kind"), min_length=1, description="questions that are asked"
    )
    size: int = Field(64, ge=16, le=2048, description="width and height of an image in pixels")
    colors: int = Field(4, ge=2, le=6, description="number of colors")
    most: int = Field(4, ge=1, le=4, description="most shapes in an image")
    distractors: int = Field(
        0, ge=0, le=3, description="number of gray shapes that no question is about"
    )
    zoom: bool = Field(
        False,
        description="show the scene in gray until the policy asks for a part of it, then show this part in color",
    )
    zoom_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="with zoom, the share of the scenes of the split train that are gray at first; the others teach to "
        "tell colors",
    )
    image: bool = Field(
        True, description="show images; false: show none, so that the policy has to guess"
    )
    style: Literal["chat", "letters"] = Field(
        "chat", description="chat: sentences and words; letters: one each, for a tiny model"
    )

    @model_validator(mode="after")
    def _room(self) -> ShapesConfig:
        if self.most + self.distractors > 4:
            raise ValueError(
                f"most is {self.most} and distractors {self.distractors}; expected at most 4 together"
            )
        if self.zoom and self.questions != ("color",):
            raise ValueError('zoom hides colors alone; expected questions = ["color"] with it')
        if self.zoom_share != 1 and not self.zoom:
            raise ValueError(
                f"zoom_share is {self.zoom_share}, and without zoom no scene is gray; set zoom, or leave it out"
            )
        return self
