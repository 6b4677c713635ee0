"""The hub of models and data sets, asked once whether it can be reached before files are downloaded from it.

Its client repeats a request that finds no connection, or no answer, five times, for each file and for a minute and a
half, also where the name of its host is not known. Without a network you would wait minutes for an error, or for files
that are here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache

from rlhf_core.errors import ConfigError, DataError

log = logging.getLogger(__name__)

_FILES = ("config.json", "tokenizer_config.json", "adapter_config.json")
"""Files of which each model or tokenizer has one."""
_FAILED_S = 60.0
"""Seconds for which nobody asks again a hub that did not answer: a run names several sets."""
_failed: dict[str, tuple[float, str]] = {}
"""Address of a hub that did not answer -> when that was, and why."""
_USED_WITHOUT = (
    "%s cannot be reached (%s): files that were downloaded earlier are used. With HF_HUB_OFFLINE=1 "
    "they are used at once."
)


def reach_hub(name: str) -> None:
    """Ask whether the hub can be reached and has a model, where the model is no folder and was not downloaded earlier.

    Where it cannot, this process takes from then on what was downloaded earlier, as with ``HF_HUB_OFFLINE``.

    Raises:
        ConfigError: the hub has no such model, or none that may be read here.
        ConfigError: the hub refuses connections, does not answer or is not known here, and nothing of the model was
            downloaded earlier.
    """
    if os.path.exists(name):
        return
    from huggingface_hub import constants

    if constants.is_offline_mode():
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
        log.warning(_USED_WITHOUT, constants.ENDPOINT, error)
        constants.HF_HUB_OFFLINE = True
    else:
        if not was_downloaded:
            _refuse_unknown(name)


@contextmanager
def reaching_hub(spec: str) -> Iterator[None]:
    """Ask whether the hub can be reached, and open a data set in the body; without it, one that was downloaded earlier.

    Raises:
        DataError: the hub refuses connections, does not answer or is not known here, and the body failed without it.
    """
    from datasets import config
    from huggingface_hub import constants

    if constants.is_offline_mode() or config.HF_HUB_OFFLINE:
        yield
        return
    if "/" not in spec:  # a misspelled file looks so, too
        _say_asked(spec)
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
        log.warning(_USED_WITHOUT, constants.ENDPOINT, reason)
    except DataError as error:
        raise DataError(
            f"{spec}: no such file or folder is here, no data set of that name was downloaded earlier, and "
            f"{constants.ENDPOINT} cannot be reached ({reason}). Correct the name, or give a file or a folder that "
            "save_to_disk wrote elsewhere.",
            code="data/hub-unreachable",
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = False


@lru_cache
def _say_asked(spec: str) -> None:
    log.warning("%s: no such file or folder is here, so the hub is asked for a data set", spec)


# Errors are not kept for long: the network may be there when a notebook asks again.
@lru_cache
def _ask(endpoint: str) -> None:
    """Send one request; each answer will do, within the time that the client takes for one."""
    when, reason = _failed.get(endpoint, (0.0, ""))
    if reason and time.monotonic() - when < _FAILED_S:
        raise ConnectionError(reason)
    try:
        _request(endpoint)
    except ConnectionError as error:
        _failed[endpoint] = (time.monotonic(), str(error))
        raise


def _request(endpoint: str) -> None:
    from huggingface_hub import constants, get_session

    patience_s, asked = constants.HF_HUB_ETAG_TIMEOUT, Future[object]()

    def ask() -> None:
        try:
            answer = get_session().head(endpoint, timeout=patience_s, follow_redirects=False)
            asked.set_result(answer)
        except Exception as error:
            asked.set_exception(error)

    # The client's timeout bounds neither the look-up of a name nor the tries of a host's addresses together.
    threading.Thread(target=ask, daemon=True).start()
    try:
        asked.result(patience_s)
    except Exception as error:  # of the client's library, which the hub's releases replace
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if not kinds.isdisjoint({"TimeoutException", "TimeoutError"}):
            raise ConnectionError(
                f"no answer within {patience_s} s; for a slow network set HF_HUB_ETAG_TIMEOUT=60"
            ) from error
        if "ConnectError" in kinds:
            raise ConnectionError(str(error)) from error


@lru_cache
def _refuse_unknown(name: str) -> None:
    """Look for a model on the hub: whoever reads its files imports their library before, which takes seconds."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, _FILES[0]))
    except Exception as error:  # a hub that is slow or broken is the downloads' matter
        if "RepositoryNotFoundError" in {kind.__name__ for kind in type(error).__mro__}:
            raise ConfigError(
                f"model {name}: there is no such folder, and {constants.ENDPOINT} has no model of that name that you "
                "may read. Correct the name, give a folder, or log in (hf auth login) where it is private or gated.",
                code="model/not-on-hub",
            ) from error


def _was_downloaded(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES)
