"""A look at images: what is read, and every refusal."""

import io

import numpy as np
import pytest
from PIL import Image
from tests.images import noisy, odd, refused, saved

from rlhf_core.media.inspecting import ImageFacts, MediaLimits, decode, inspect
from rlhf_core.media.problem import MediaProblem


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_six_formats_are_read(format):
    facts = inspect(saved(noisy(20, 12), format), MediaLimits())

    assert facts == ImageFacts(format=format.lower(), width=20, height=12)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "1"])
def test_colors_of_8_bits_become_rgb(mode):
    content = saved(noisy(mode=mode))

    inspect(content, MediaLimits())

    assert decode(content).mode == "RGB"


@pytest.mark.parametrize("name", refused())
def test_an_image_that_cannot_be_used_is_refused_with_a_reason(name):
    content, reason, _ = refused()[name]

    with pytest.raises(MediaProblem, match=reason):
        inspect(content, MediaLimits())


def test_limits_name_their_options():
    content = saved(noisy(20, 12))

    with pytest.raises(MediaProblem, match=r"--data\.max_image_bytes allows 100"):
        inspect(content, MediaLimits(max_bytes=100))
    with pytest.raises(
        MediaProblem, match=r"240 pixels \(20 x 12\), --data\.max_image_pixels allows 200"
    ):
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


@pytest.mark.parametrize("name", odd())
def test_images_of_any_kind_are_those_of_transformers(name):
    """Turned as their notes say, and of palettes, print colors and 16 bits, as ``load_image`` makes them."""
    from transformers.image_utils import load_image

    content = odd()[name]
    expected = load_image(Image.open(io.BytesIO(content)))

    np.testing.assert_array_equal(np.asarray(decode(content)), np.asarray(expected))
    for decodes in (True, False):
        facts = inspect(content, MediaLimits(), decodes=decodes)
        assert (facts.width, facts.height) == expected.size


@pytest.mark.parametrize("name", refused())
def test_a_look_at_the_header_finds_what_is_refused(name):
    """Nothing is decoded but what leaves open whether it is whole."""
    content, reason, _ = refused()[name]

    with pytest.raises(MediaProblem, match=reason):
        inspect(content, MediaLimits(), decodes=False)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_whole_file_is_not_decoded(format, monkeypatch):
    content = saved(noisy(64, 64), format)

    def decoded(image):
        raise AssertionError("the pixels were decoded")

    monkeypatch.setattr("rlhf_core.media.inspecting._load", decoded)

    assert inspect(content, MediaLimits(), decodes=False).width == 64


def test_an_image_of_16_bits_is_told():
    assert inspect(odd()["16 bits gray"], MediaLimits()).is_clipped
    assert not inspect(saved(noisy()), MediaLimits()).is_clipped
