"""A training backend at work on a tiny model, for the checks of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from rlhf_core.contracts.backend import Objective, PolicyObjective, RoleSpec
from rlhf_core.errors import ConfigError

from .comparing import assert_equal
from .subject import Subject
from .tiny_policy import LOSS, SGD, PolicyGradient, plain_plugins


def _spec(folder: Path, objective: Objective | None = None, **changes: Any) -> RoleSpec:
    spec = RoleSpec(
        role="policy",
        model_path=str(folder),
        objective=objective or PolicyObjective(loss=LOSS, aggregation="token-mean"),
        optimizer=SGD,
        max_grad_norm=None,
    )
    return replace(spec, **changes)


@contextmanager
def running(
    subject: Subject,
    folder: Path,
    objective: Objective | None = None,
    *,
    loss: PolicyGradient | None = None,
    trained: bool = True,
    **changes: Any,
) -> Iterator[Any]:
    """Yield the subject's backend, set up on the model in ``folder`` and closed at the end.

    Args:
        objective: None: policy gradient, by token-mean.
        trained: False: the role has neither objective nor optimizer.
        loss: the policy loss, if the caller wants to see what it is called with.
        changes: other fields of the ``RoleSpec``.
    """
    backend = subject.make()
    spec = _spec(folder, objective, **changes)
    if not trained:
        spec = replace(spec, objective=None, optimizer=None)
    backend.setup(spec, plain_plugins(loss))
    try:
        yield backend
    finally:
        backend.close()


def weights_of(backend: Any) -> dict[str, Tensor]:
    """Return copies of the weights that engines get, in float32."""
    return {
        name: tensor.detach().float().cpu().clone()
        for bucket in backend.buckets()
        for name, tensor in bucket.items()
    }


def assert_same_weights(backend: Any, expected: dict[str, Tensor], what: str) -> None:
    """Raise AssertionError unless the backend's weights are ``expected``, up to float32 rounding."""
    found = weights_of(backend)
    for name, tensor in expected.items():
        if name in found:
            assert_equal(found[name], tensor, f"{what}: {name}", atol=2e-5, rtol=1e-3)


def is_accepted(
    subject: Subject, folder: Path, objective: Objective | None = None, **settings: Any
) -> bool:
    """Return False if the role is refused for its objective or its settings."""
    try:
        with running(subject, folder, objective, **settings):
            return True
    except ConfigError:
        return False
