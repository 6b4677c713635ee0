"""Images of a request: from each dialect's form to a reference, with the bytes in the run's store.

A request carries its images itself, in base64. Addresses are refused, also where data may have them: an agent's request
must not make this process read a file or fetch a page. Equal bytes have one reference, by which a conversation that
comes again is recognized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.media import ImageReader, MediaProblem

from .fields import kind_of, object_of, text_of
from .problems import RequestProblem

IMAGE_KINDS = ("image_url", "input_image", "image")
"""Types of a part that is an image: of OpenAI's chat, of its responses, and of Anthropic."""
_KNOWN = frozenset({"type", "image_url", "url", "detail", "source", "file_id", "cache_control"})
"""Keys of parts and of their addresses. What is cached is another question than what is read."""
_PLAIN_DETAILS = (None, "auto", "original")


class RequestImages:
    """Takes the images of one request in.

    Args:
        reader: takes images into the run; None: the policy reads text alone.
        ignores_overrides: a part that asks for a resolution is read in the run's, and counted.
    """

    def __init__(self, reader: ImageReader | None, *, ignores_overrides: bool) -> None:
        self._reader, self._ignores_overrides = reader, ignores_overrides
        self._count = 0
        self.num_ignored = 0
        """Parts that asked for another resolution than the run's."""

    def part(self, part: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Return an image as a part of a message: its reference, as templates and ``rlhf_core.media`` have it.

        Raises:
            RequestProblem: the policy reads text alone, the image is an address, it cannot be used, or there are too
                many.
        """
        if self._reader is None:
            raise RequestProblem(
                f"{where} is an image, and the policy reads text alone; the run chooses what reads images with "
                "--model.vision",
                code="unsupported_content",
                parameter=where,
            )
        url = self._url(part, where)
        self._count += 1
        try:
            self._reader.loader.limits.check_count(self._count)
            message = {"role": "user", "content": [{"type": "image", "image": url}]}
            (taken,) = self._reader.messages([message], folder=Path())
        except MediaProblem as problem:
            raise RequestProblem(
                f"{where}: {problem}", code=problem.kind.replace(" ", "_"), parameter=where
            ) from problem
        found: Mapping[str, Any] = taken["content"][0]
        return found

    def _url(self, part: Mapping[str, Any], where: str) -> str:
        """Return the data URL of an image."""
        kind = part.get("type")
        self._check_rest(part, where)
        if kind == "image":
            return _from_source(part, f"{where}.source")
        if kind == "image_url":
            where = f"{where}.image_url"
            part = object_of(part.get("image_url"), where)
            self._check_rest(part, where)
            address, where = part.get("url"), f"{where}.url"
        else:
            address, where = part.get("image_url"), f"{where}.image_url"
        self._check_detail(part.get("detail"), where)
        url = text_of(address, where)
        if not url.startswith("data:"):
            raise RequestProblem(
                f"{where} is {url[:80]!r}; expected the image itself, as data:image/png;base64,...: nothing is fetched "
                "or read from files for an agent",
                code="remote_image",
                parameter=where,
            )
        return url

    def _check_rest(self, part: Mapping[str, Any], where: str) -> None:
        """Refuse sizes and whatever else a part asks for, or count it."""
        asked = [key for key, value in part.items() if value is not None and key not in _KNOWN]
        if not asked:
            return
        if not self._ignores_overrides:
            raise RequestProblem(
                f"{where} asks for {', '.join(asked)[:120]}; expected the image alone: the run decides how many pixels "
                "the policy reads. Leave it out, or run with --rollout.endpoint.overrides ignore",
                code="not_overridable",
                parameter=where,
            )
        self.num_ignored += len(asked)

    def _check_detail(self, detail: object, where: str) -> None:
        if detail in _PLAIN_DETAILS:
            return
        if not self._ignores_overrides:
            raise RequestProblem(
                f"{where} is asked for with the detail {str(detail)[:20]!r}; expected auto: the run decides how many "
                "pixels the policy reads. Leave the field out, or run with --rollout.endpoint.overrides ignore",
                code="not_overridable",
                parameter=where,
            )
        self.num_ignored += 1


def _from_source(part: Mapping[str, Any], where: str) -> str:
    source = object_of(part.get("source"), where)
    if source.get("type") != "base64":
        raise RequestProblem(
            f"{where} is of type {str(source.get('type'))[:40]!r}; expected base64, the image itself: nothing is "
            "fetched for an agent",
            code="remote_image",
            parameter=f"{where}.type",
        )
    return f"data:;base64,{text_of(source.get('data'), f'{where}.data')}"


def joined(parts: Sequence[str | Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Return texts and images as a message's content: one text where there is no image; else parts, texts that stand
    side by side as one."""
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    content: list[Mapping[str, Any]] = []
    for part in parts:
        if not isinstance(part, str):
            content.append(part)
        elif content and content[-1]["type"] == "text":
            content[-1] = {"type": "text", "text": content[-1]["text"] + part}
        elif part:
            content.append({"type": "text", "text": part})
    return content


def refuse_kind(kind: object, where: str) -> RequestProblem:
    """Return the problem of a part that is neither text nor, where images are read, an image."""
    is_image = kind in IMAGE_KINDS
    shown = repr(kind)[:40] if isinstance(kind, str) else kind_of(kind)
    expected = "text: images are read from users and tools" if is_image else "text or an image"
    return RequestProblem(
        f"{where} is of type {shown}; expected {expected}",
        code="unsupported_content",
        parameter=f"{where}.type",
    )
