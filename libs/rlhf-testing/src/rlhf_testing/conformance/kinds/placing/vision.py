"""Checks of vision models (``contracts.VisionModel``), with the tiny models of the kit that the component reads.

A component that reads none of them has to be checked with a model of its own, in its tests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from rlhf_core.errors import ConfigError
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.reference import MediaRef
from rlhf_core.media.spans import ImageTokens, collapsed, expanded

from ....tiny_vision import VISION_FAMILIES, write_tiny_vision_model
from ...subject import Subject, checks_in

_SIZES = ((8, 8), (32, 32), (64, 48), (48, 64), (200, 24), (1, 1), (24, 200), (4000, 3000))


@lru_cache(maxsize=1)
def _models() -> tuple[Path, ...]:
    """Return tiny models, which are there until the process ends."""
    _kept.append(tempfile.TemporaryDirectory(prefix="checked-", ignore_cleanup_errors=True))
    folder = Path(_kept[-1].name)
    return tuple(write_tiny_vision_model(folder / name, name) for name in VISION_FAMILIES)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _image(width: int, height: int, digit: str = "0") -> MediaRef:
    return MediaRef(sha256=digit * 64, num_bytes=1, format="png", width=width, height=height)


def _read(subject: Subject) -> Iterator[tuple[str, ImageTokens]]:
    """Yield the name of each tiny model that the component reads, and its way to write images."""
    found = 0
    for folder in _models():
        try:
            tokens = subject.make().image_tokens(str(folder), trust_remote_code=False)
        except ConfigError:
            continue  # another family
        found += 1
        yield folder.name, tokens
    assert found, f"it reads none of {', '.join(VISION_FAMILIES)}; check it in its tests"


def _tokens_of(tokens: ImageTokens, image: MediaRef) -> tuple[int, ...] | None:
    """Return an image's tokens; None for one of a size that the model refuses."""
    try:
        return tokens.tokens_of(image)
    except MediaProblem:
        return None


def check_an_image_has_tokens(subject: Subject) -> None:
    """An image of any size is some tokens, whole numbers from 0 on, or is refused as a ``MediaProblem``."""
    for name, tokens in _read(subject):
        sizes = {size: _tokens_of(tokens, _image(*size)) for size in _SIZES}
        assert any(sizes.values()), (
            f"{name}: images of all of {', '.join(map(str, sizes))} are refused"
        )
        for size, found in sizes.items():
            if found is None:
                continue
            assert isinstance(found, tuple), (
                f"{name}, {size}: {type(found).__name__}, expected a tuple"
            )
            assert found, f"{name}, {size}: no tokens"
            wrong = [token for token in found if not isinstance(token, int) or token < 0]
            assert not wrong, f"{name}, {size}: {wrong[:3]} are no token ids"


def check_a_policy_cannot_write_an_image(subject: Subject) -> None:
    """The marker, and a token of each image, are among those that are never sampled."""
    for name, tokens in _read(subject):
        never = set(tokens.never_sampled)
        assert tokens.marker_id in never, f"{name}: the marker {tokens.marker_id} may be sampled"
        for size in _SIZES:
            found = _tokens_of(tokens, _image(*size))
            assert found is None or never & set(found), (
                f"{name}, {size}: all of {sorted(set(found))} may be sampled, so that a policy can write an image"
            )


def check_equal_sizes_have_equal_tokens(subject: Subject) -> None:
    """The tokens are a function of the image's size: they are known before a pixel is processed, anywhere."""
    for name, tokens in _read(subject):
        for size in _SIZES:
            first = _tokens_of(tokens, _image(*size))
            second = _tokens_of(tokens, _image(*size, digit="f"))
            assert first == second, f"{name}, {size}: other tokens for another image of that size"
    again = dict(_read(subject))
    for name, tokens in _read(subject):
        for size in reversed(_SIZES):
            first, second = (_tokens_of(one, _image(*size)) for one in (tokens, again[name]))
            assert first == second, f"{name}, {size}: other tokens from another instance"


def check_places_come_back(subject: Subject) -> None:
    """Markers become tokens, and tokens markers again, for images of different sizes beside each other."""
    for name, tokens in _read(subject):
        images = [_image(*size) for size in _SIZES if _tokens_of(tokens, _image(*size)) is not None]
        other = max((0, tokens.marker_id, *tokens.never_sampled)) + 1
        prompt = [other, *(token for _ in images for token in (tokens.marker_id, other))]
        found = expanded(prompt, images, tokens)
        assert collapsed(found.token_ids, found.spans, tokens.marker_id) == prompt, (
            f"{name}: {len(images)} markers do not come back from their {len(found.token_ids)} tokens"
        )


def check_what_is_no_model_is_refused(subject: Subject) -> None:
    """A folder without files of a model is refused as a ``ConfigError``, where the component reads any."""
    with tempfile.TemporaryDirectory(prefix="checked-") as folder:
        try:
            subject.make().image_tokens(folder, trust_remote_code=False)
        except ConfigError:
            return
        except Exception as error:
            raise AssertionError(
                f"{type(error).__name__}: {error}; expected a ConfigError for an empty folder"
            ) from error


CHECKS = checks_in(__name__)
