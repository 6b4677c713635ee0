"""One context for everything that a run saves: a write that fails is a named error, and nothing of it remains.

Libraries report a full disk in forms of their own: ``OSError``, safetensors' ``SafetensorError``, and a plain
``Exception`` of tokenizers, the last two with ``(os error 28)`` in their text; ``torch.save`` without its reason.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from ..errors import RLHFError, StorageError
from .atomic import remove, sync_folder, sync_tree

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Numbers of errors of a disk, a quota or a file without room."""
_IN_TEXT = re.compile(r"\(os error (\d+)\)|\[Errno (\d+)\]")
_CUT_OFF_BY_TORCH = re.compile(r"inline_container\.cc:\d+\].*(unexpected pos|Writer failed)")
_MAKE_ROOM = "Make room there, and start again"


class FailedWrite(StorageError):
    """Reason of a failed write alone; ``writing`` around it says what was written."""


def write_text_atomically(path: Path, text: str) -> None:
    """Replace a file's content in one step, durably.

    Raises:
        StorageError: the file could not be written; it is as it was.
    """
    with written_whole(path) as file:
        file.write(text.encode())


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write, which has the name ``path`` once the body has ended, durably, in place of an older one.

    Raises:
        StorageError: the file could not be written; what had the name is as it was, here as for any error of the body.
    """
    with made_whole(path) as temporary, temporary.open("xb") as file:
        yield file


@contextmanager
def made_whole(
    path: Path,
    *,
    what: str = "",
    advice: str = "",
    at_once: bool = False,
) -> Iterator[Path]:
    """Give a free path, at which the body makes a file, a link or a folder; it has the name ``path`` once the body has
    ended, durably, in place of an older one.

    Args:
        what: subject of an error's message; empty: the path.
        advice: further sentences of the message.
        at_once: several processes may make it at the same time, each beside the others; the last one's stays.

    Raises:
        StorageError: it could not be written; what had the name is as it was, here as for any error of the body.
    """
    name = f".new-{token_hex(8)}" if at_once else f"{path.name}.tmp"
    temporary = path.with_name(name)
    with writing(what or str(path), temporary, advice=advice):
        remove(temporary)
        yield temporary
        if temporary.is_symlink():
            pass  # a link is nothing but a name
        elif temporary.is_dir():
            sync_tree(temporary)
            remove(path)
        else:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


@contextmanager
def writing(
    what: str, *unfinished: Path, advice: str = "", error: Callable[[str], RLHFError] = StorageError
) -> Iterator[None]:
    """Translate a failed write of the body, and remove what it left.

    A ``StorageError`` of the body says itself what was written, and is passed on where ``error`` is no other class.

    Args:
        what: subject of the message, with the place.
        unfinished: files and folders that the body writes, and that are gone if it fails in any way.
        advice: further sentences of the message.

    Raises:
        StorageError: the body could not write; or what ``error`` makes of the message.
    """
    try:
        yield
    except BaseException as failure:
        for path in unfinished:
            with suppress(OSError):  # the error to report is the first one
                remove(path)
        reason = reason_of(failure)
        if reason is None or (error is StorageError and _is_named(failure)):
            raise
        raised = error(f"{what} could not be written: {reason}{'. ' if advice else ''}{advice}")
        raised.code = StorageError.default_code  # one mistake, whatever its class
        raise raised from failure


@contextmanager
def failed_writes_named() -> Iterator[None]:
    """Raise a failed write of the body as the same error in every process, for a caller who says what was written.

    Raises:
        StorageError: the body could not write.
    """
    try:
        yield
    except Exception as failure:
        reason = reason_of(failure)
        if reason is None or isinstance(failure, StorageError):
            raise
        raise FailedWrite(reason) from failure


def reason_of(failure: BaseException) -> str | None:
    """Return why a write failed, with the way out where there is one; None: the failure is no failed write."""
    if isinstance(failure, StorageError):
        return str(failure)
    if not isinstance(failure, Exception) or isinstance(failure, RLHFError):
        return None
    if _CUT_OFF_BY_TORCH.search(str(failure)):
        return f"torch wrote a part of it, as on a full disk. {_MAKE_ROOM}"
    number = _number_of(failure)
    if number is None:
        return str(failure) or type(failure).__name__ if isinstance(failure, OSError) else None
    text = os.strerror(number)
    return f"{text}. {_MAKE_ROOM}" if number in FULL else text


def is_full(failure: BaseException) -> bool:
    """Return whether a library says that a disk, a quota or a file has no room, whatever it was doing."""
    return not isinstance(failure, RLHFError) and _number_of(failure) in FULL


def _is_named(failure: BaseException) -> bool:
    return isinstance(failure, StorageError) and not isinstance(failure, FailedWrite)


def _number_of(failure: BaseException) -> int | None:
    if isinstance(failure, OSError):
        return failure.errno
    found = _IN_TEXT.search(str(failure))
    return None if found is None else int(found[1] or found[2])
