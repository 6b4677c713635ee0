"""Kinds of interpolation, by which Transformers makes a table as it is imported."""

from . import functional, v2
from .functional import InterpolationMode

__all__ = ["InterpolationMode", "functional", "v2"]
