"""Options that commands which work through a list share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_config import PromptData
from rlhf_config.common import ImageData
from rlhf_core import Config


class PromptsWithImages(ImageData, PromptData):
    """Sets of prompts, which may have images where the model reads them."""


class Scores(Config):
    use: tuple[str, ...] = Field(
        (),
        description="rewards that score each sample, summed with their weights: NAME, or FILE.py:NAME for your own "
        "function",
    )


class Display(Config):
    progress: Literal["auto", "live", "plain", "off"] = Field(
        "auto", description="form of the progress line; auto: live on a terminal, else plain"
    )
