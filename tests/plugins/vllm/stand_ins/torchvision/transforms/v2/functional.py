"""The kinds of interpolation, which Transformers reads here as well."""

from ..functional import InterpolationMode

__all__ = ["InterpolationMode"]
