"""GPUs of each engine: an equal share of those that this process sees, given to an engine's processes as they start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlhf_core import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"
Gpus = Sequence[str]
"""Names of GPUs as in this variable."""


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process sees, as ``CUDA_VISIBLE_DEVICES`` has them."""
    listed = os.environ.get(VARIABLE)
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def shares(gpus: Gpus, num_engines: int) -> list[Gpus]:
    """Return the GPUs of each engine: as many for one as for another, in order; none where there are no GPUs.

    Raises:
        ConfigError: there are GPUs, but fewer than engines.
    """
    each = len(gpus) // num_engines
    if gpus and not each:
        raise ConfigError(
            f"--engines {num_engines}: expected a GPU for each engine; this process sees {len(gpus)}. Set --engines "
            f"{len(gpus)} or fewer.",
            code="gpu/too-few",
        )
    return [gpus[index * each : (index + 1) * each] for index in range(num_engines)]


@contextmanager
def only(gpus: Gpus) -> Iterator[None]:
    """Start processes in the body that see these GPUs alone; with an empty sequence they see what this one does.

    What this process has computed with already stays as it is: CUDA reads the variable once.
    """
    before = os.environ.get(VARIABLE)
    if gpus:
        os.environ[VARIABLE] = ",".join(gpus)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
