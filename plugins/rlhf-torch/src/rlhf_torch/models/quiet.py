"""Transformers without its progress bars: the run's own display owns the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch the bars of loading and saving off, and back to what they were."""
    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()
