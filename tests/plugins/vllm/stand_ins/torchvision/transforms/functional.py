"""Conversion of images, as far as Transformers imports it."""

from typing import NoReturn


def pil_to_tensor(*arguments: object, **options: object) -> NoReturn:
    """Fail: nothing here computes."""
    raise NotImplementedError("this is a stand-in for torchvision")
