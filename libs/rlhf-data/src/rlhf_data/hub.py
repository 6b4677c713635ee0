"""The hub of models and data sets, asked once whether it can be reached before files are downloaded from it.

Its client repeats a request that finds no connection five times, for each file and for half a minute, also where the
name of its host is not known. Whoever has no network would wait minutes for an error, or for files that are here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from rlhf_core.errors import ConfigError, DataError

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""Seconds for a connection and an answer, after which the network is slow and the client's own patience counts."""
_FILES = ("config.json", "tokenizer_config.json", "adapter_config.json")
"""Files of which each model or tokenizer has one."""


def reach_hub(name: str) -> None:
    """Ask whether the hub can be reached, where a model is no folder.

    Where it cannot, this process takes from then on what was downloaded earlier, as with ``HF_HUB_OFFLINE``.

    Raises:
        ConfigError: the hub refuses connections or is not known here, and nothing of the model was downloaded earlier.
    """
    from huggingface_hub import constants

    if os.path.exists(name) or constants.is_offline_mode():
        return
    try:
        was_downloaded = _was_downloaded(name)
    except ValueError:  # whoever reads the files says what is no name of the hub
        return
    try:
        _ask(constants.ENDPOINT)
    except ConnectionError as error:
        if not was_downloaded:
            raise ConfigError(
                f"model {name}: there is no such folder, nothing of that name was downloaded earlier, and "
                f"{constants.ENDPOINT} cannot be reached ({error}). Look at the name and the network, or give "
                "a folder.",
                code="model/hub-unreachable",
            ) from error
        log.warning(
            "%s cannot be reached (%s): files that were downloaded earlier are used",
            constants.ENDPOINT,
            error,
        )
        constants.HF_HUB_OFFLINE = True


@contextmanager
def reaching_hub(spec: str) -> Iterator[None]:
    """Ask whether the hub can be reached, and open a data set in the body; without it, one that was downloaded earlier.

    Raises:
        DataError: the hub refuses connections or is not known here, and the body failed without it.
    """
    from datasets import config
    from huggingface_hub import constants

    if constants.is_offline_mode() or config.HF_HUB_OFFLINE:
        yield
        return
    if "/" not in spec:
        # A misspelled file looks so, too.
        log.warning("%s: no such file or folder is here, so the hub is asked for a data set", spec)
    try:
        _ask(constants.ENDPOINT)
    except ConnectionError as error:
        reason = error
    else:
        yield
        return
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    except DataError as error:
        raise DataError(
            f"{spec}: no such file or folder is here, no data set of that name was downloaded earlier, and "
            f"{constants.ENDPOINT} cannot be reached ({reason}). Correct the name, or give a file or a folder that "
            "save_to_disk wrote elsewhere.",
            code="data/hub-unreachable",
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = False


# Errors are not kept: the network may be there when a notebook asks again.
@lru_cache
def _ask(endpoint: str) -> None:
    """Send one request; a connection that is slow, and each answer, will do.

    Raises:
        ConnectionError: there is no connection.
    """
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=_PATIENCE_S, follow_redirects=False)
    except Exception as error:  # of the client's library, which the hub's releases replace
        # What takes too long has another class: the network is slow, and the download may have more patience.
        if "ConnectError" in {kind.__name__ for kind in type(error).__mro__}:
            raise ConnectionError(str(error)) from error


def _was_downloaded(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES)
