"""Import of DeepSpeed at its first use, with its prints, warnings and unasked compilation turned off."""

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
    """Import DeepSpeed for the kind of ``device``, and return the module.

    Raises:
        ConfigError: this process has already imported DeepSpeed for another kind of device.
    """
    if device.type == "cpu":
        # Without the variable DeepSpeed would take any GPU of the machine.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        # Without this one DeepSpeed starts numactl to count devices, at every bucket of gradients of stage 3. The count
        # matters to all-to-all sums across nodes, which need GPUs.
        os.environ.setdefault("LOCAL_SIZE", "1")
    with quietly():
        import deepspeed
        from deepspeed.accelerator import get_accelerator

    # DeepSpeed warns of other optimizers than its own, which is on purpose here, and of skipped updates, which
    # ``train/skipped_updates`` counts.
    logging.getLogger(LOGGER).setLevel(logging.ERROR)
    # DeepSpeed 0.19 uses names of collective calls that torch 2.13 has replaced.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning
    )
    if device.type == "cpu":
        # DeepSpeed would compile this operation for sums on one host, for minutes and unasked, and a killed rank would
        # leave its shared memory behind. Gloo does the same sums.
        deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False
    chosen = str(get_accelerator().device_name())
    if not chosen.startswith(device.type):
        raise ConfigError(
            f"DeepSpeed works on {chosen} in this process, but the role's device is {device.type}. Set "
            f"DS_ACCELERATOR={device.type} in the environment, or --backend.deepspeed.device {chosen}.",
            code="deepspeed/other-accelerator",
        )
    module: ModuleType = deepspeed
    return module


@contextmanager
def quietly() -> Iterator[None]:
    """Hide standard output and warnings for a while.

    DeepSpeed prints memory statistics at every log level, and its imports raise deprecation warnings that no user of
    the run can act on.
    """
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
