"""Models of the Hub at one revision: ``NAME@REVISION`` in an option becomes the folder of that commit on this machine.

That happens where the option is read, so all that reads the model afterwards, in any process, finds a folder whose last
part is the commit: it stands in the configuration of the run and in its messages, and cannot move with a branch.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

from rlhf_core.errors import ConfigError

_PINNED = re.compile(r"(\w[\w.-]*(?:/\w[\w.-]*)?)@([\w.-]+(?:/[\w.-]+)*)")
"""A name of the Hub, which has no @, and a branch, a tag or a commit."""
_NOT_READ = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "original/*")
"""Weights in forms that are never read, beside those in safetensors."""


def pinned_folder(value: str) -> str:
    """Return the folder of the commit that ``NAME@REVISION`` names, downloaded where it is not here; any other text,
    and what exists under that name, as it is.

    A branch or a tag is looked up on the Hub. With ``HF_HUB_OFFLINE=1``, and without a network, it is the commit that
    it was when it was downloaded.

    Raises:
        ConfigError: the Hub has no such model or revision that may be read here, or cannot be asked, and it was not
            downloaded earlier.
    """
    match = _PINNED.fullmatch(value)
    if match is None or os.path.exists(value):
        return value
    return _downloaded(match[1], match[2])


@lru_cache
def _downloaded(name: str, revision: str) -> str:
    from huggingface_hub import snapshot_download  # not part of help
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(name, revision=revision, ignore_patterns=list(_NOT_READ)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"expected a folder, or NAME@REVISION of a model that was downloaded earlier or can be; {name}@{revision} "
            f"is neither: {type(error).__name__}: {first_line:.200}. Correct the name or the revision (a branch, a tag "
            "or a commit), log in (hf auth login) where it is private or gated, or give a folder.",
            code="model/no-such-revision",
        ) from error


HubModel = Annotated[str, AfterValidator(pinned_folder)]
"""Type of an option that takes the folder or the hub name of a model, an adapter or a tokenizer."""
