"""Reading of images, as far as Transformers imports it."""

from typing import NoReturn


class ImageReadMode:
    """Nothing but the name."""


def decode_image(*arguments: object, **options: object) -> NoReturn:
    """Fail: nothing here computes."""
    raise NotImplementedError("this is a stand-in for torchvision")
