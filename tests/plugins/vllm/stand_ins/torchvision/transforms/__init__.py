"""Kinds of interpolation, by which Transformers makes a table as it is imported."""

from enum import Enum

from . import v2

__all__ = ["InterpolationMode", "v2"]


class InterpolationMode(Enum):
    """The names of torchvision's class."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
