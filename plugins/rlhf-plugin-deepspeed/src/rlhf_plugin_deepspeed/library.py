"""DeepSpeed itself: imported where it is first used, kept quiet, and without what it would compile unasked."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType

import torch

from rlhf_core import ConfigError

LOGGER = "DeepSpeed"
SHARED_MEMORY_OP = "deepspeed_shm_comm"


def load_deepspeed(device: torch.device) -> ModuleType:
    """Import DeepSpeed for ``device``.

    Raises:
        ConfigError: DeepSpeed was imported before, for another kind of device.
    """
    if device.type == "cpu":
        # It would take any GPU that the machine has.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with quietly():
        import deepspeed
        from deepspeed.accelerator import get_accelerator

    # Its warnings at this level are of things that are on purpose here: other optimizers than its own, and skipped
    # steps, which are a metric of ours.
    logging.getLogger(LOGGER).setLevel(logging.ERROR)
    # DeepSpeed 0.19 uses names of collective calls that torch 2.13 has replaced.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning
    )
    if device.type == "cpu":
        # An extra for sums on one host. It takes minutes to compile, without asking, and leaves shared memory behind
        # where a rank is killed; gloo does the same sums.
        deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False
    chosen = str(get_accelerator().device_name())
    if not chosen.startswith(device.type):
        raise ConfigError(
            f"DeepSpeed works on {chosen} in this process, but the role is to be on {device.type}. Set "
            f"DS_ACCELERATOR={device.type} in the environment, or --backend.deepspeed.device."
        )
    return deepspeed


@contextmanager
def quietly() -> Iterator[None]:
    """Keep DeepSpeed's start-up to itself: it prints memory statistics whatever its log level, while the terminal is
    the run's own, and what it imports warns of its own old habits."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
