"""Vision models that break one promise each, and what catches them."""

from dataclasses import dataclass

import pytest

from rlhf_core import Component, ConfigError
from rlhf_core.media import MediaRef, ProcessorText
from rlhf_testing.conformance import run_checks


@dataclass
class Squares:
    """A token for each square of 8 by 8 pixels, and one in front."""

    marker_id: int = 5
    pads: tuple[int, ...] = (5, 6)
    first: int = 5

    @property
    def never_sampled(self):
        return self.pads

    @property
    def writing(self):
        return ProcessorText()

    def tokens_of(self, image: MediaRef):
        return (self.first, *[6] * max(1, image.width * image.height // 64))


class Sees:
    """Writes images by ``tokens``."""

    tokens = Squares

    def image_tokens(self, model_path, *, trust_remote_code):
        return self.tokens()


class ByContent(Squares):
    """As many tokens as a digest says."""

    def tokens_of(self, image):
        return (5, *[6] * (1 + int(image.sha256[0], 16)))


class NoTokens(Squares):
    """Images leave nothing."""

    def tokens_of(self, image):
        return ()


class MayBeWritten(Squares):
    """A policy can write the marker."""

    @property
    def never_sampled(self):
        return (6,)


class Crashes(Sees):
    """Looks for a file that is not there."""

    def image_tokens(self, model_path, *, trust_remote_code):
        if not model_path.endswith("llava"):
            raise (
                FileNotFoundError(model_path) if "qwen" not in model_path else ConfigError("other")
            )
        return Squares()


@pytest.mark.parametrize(
    ("tokens", "check"),
    [
        (Squares, None),
        (ByContent, "check_equal_sizes_have_equal_tokens"),
        (NoTokens, "check_an_image_has_tokens"),
        (MayBeWritten, "check_a_policy_cannot_write_an_image"),
    ],
)
def test_a_broken_vision_model_is_caught(tokens, check):
    class Tried(Sees):
        """Reads all of the kit's models alike."""

    Tried.tokens = tokens

    caught = caught_by(Tried)

    assert caught == set() if check is None else check in caught


def caught_by(model):
    component = Component(name="tried", factory=lambda config: model())
    outcomes = run_checks("rlhf_vision_models", component)
    return {outcome.check for outcome in outcomes if outcome.failed}


def test_a_folder_that_is_no_model_has_to_be_refused_in_words():
    assert "check_what_is_no_model_is_refused" in caught_by(Crashes)
