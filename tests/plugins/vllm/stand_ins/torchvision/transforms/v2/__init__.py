"""The module that image processors import."""

from . import functional

__all__ = ["functional"]
