"""The hub of models, asked once whether it can be reached before files are downloaded from it.

Its client repeats a request that finds no connection five times, for each file and for half a minute, also where the
name of its host is not known. Whoever has no network would wait minutes for an error, or for files that are here.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache

from rlhf_core.errors import ConfigError

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
