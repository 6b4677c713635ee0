"""Silencing of Transformers where it loads and saves, because the terminal belongs to the run's own display."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Return a context without the progress bars of loading and saving; after it they are as before."""
    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Return a context without progress bars, and without the warning that weights stay quantized as their files have
    them, which is what ``qlora`` does with a base in 4 bits."""
    with no_progress_bars(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You passed `quantization_config`")
        yield


@contextmanager
def errors_only() -> Iterator[None]:
    """Return a context in which Transformers logs errors alone, for callers that name missing weights themselves: it
    would print a table of them."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
