"""A look at images: what is read, and every refusal."""

import pytest
from PIL import Image
from tests.images import noisy, refused, saved

from rlhf_core.media.inspecting import ImageFacts, MediaLimits, decode, inspect
from rlhf_core.media.problem import MediaProblem


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_three_formats_are_read(format):
    facts = inspect(saved(noisy(20, 12), format), MediaLimits())

    assert facts == ImageFacts(format=format.lower(), width=20, height=12)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "1"])
def test_colors_of_8_bits_become_rgb(mode):
    content = saved(noisy(mode=mode))

    inspect(content, MediaLimits())

    assert decode(content).mode == "RGB"


@pytest.mark.parametrize("name", refused())
def test_an_image_that_cannot_be_used_is_refused_with_a_reason(name):
    content, reason = refused()[name]

    with pytest.raises(MediaProblem, match=reason):
        inspect(content, MediaLimits())


def test_limits_name_their_options():
    content = saved(noisy(20, 12))

    with pytest.raises(MediaProblem, match=r"--data\.max_image_bytes allows 100"):
        inspect(content, MediaLimits(max_bytes=100))
    with pytest.raises(MediaProblem, match=r"20 x 12 pixels, --data\.max_image_pixels allows 200"):
        inspect(content, MediaLimits(max_pixels=200))
    with pytest.raises(
        MediaProblem, match=r"3 images in one sequence, --data\.max_images allows 2"
    ):
        MediaLimits(max_images=2).check_count(3)


def test_what_is_transparent_shows_white():
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 0))

    assert decode(saved(image)).getpixel((0, 0)) == (255, 255, 255)


def test_pixels_are_decoded_as_they_are():
    image = noisy()

    assert decode(saved(image)).tobytes() == image.tobytes()
