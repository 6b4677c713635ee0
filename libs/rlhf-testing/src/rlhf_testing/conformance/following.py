"""A check of training backends whose roles keep a reference that follows the policy."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from rlhf_core.capabilities import KEEPS_REFERENCE

from .comparing import assert_equal
from .running_backend import running, weights_of
from .subject import Check, Subject
from .tiny_policy import PlainModel, step_plan, tiny_model, train_batch

SHARE = 0.25
"""Share of the way that the reference moves."""


def check_a_reference_follows_the_policy(subject: Subject) -> None:
    """With ``reference_sync`` = a of a backend that ``keeps_reference`` ``base_logprobs`` are those of a reference that
    begins as the weights, and that only an update with ``syncs_reference`` moves, to a * weights + (1 - a) * reference;
    the weights stay as they are, and a loaded role has its reference again."""
    batch = train_batch()
    rows, plan = batch.trajectories, step_plan(batch.trajectories)
    with tempfile.TemporaryDirectory() as saved, tiny_model() as folder:
        reference = PlainModel(folder)
        with running(subject, folder, reference_sync=SHARE) as backend:
            for syncs in (False, True, True, False):
                backend.train_step(batch, replace(plan, syncs_reference=syncs))
                now = weights_of(backend)
                for name, tensor in reference.parameters().items():
                    if syncs and name in now:
                        tensor.data.lerp_(now[name], SHARE)
                with torch.no_grad():
                    expected = reference.outputs(rows).logprobs
                found = torch.from_numpy(backend.base_logprobs(rows))
                what = f"base_logprobs with reference_sync = {SHARE:g}"
                assert_equal(found, expected, what, atol=1e-4)
                for name, tensor in weights_of(backend).items():
                    assert_equal(tensor, now[name], f"{name} after base_logprobs", atol=0.0)
            backend.save(Path(saved) / "state")
        with running(subject, folder, reference_sync=SHARE) as backend:
            backend.load(Path(saved) / "state")
            what = f"base_logprobs of a role that was saved and loaded, with reference_sync = {SHARE:g}"
            assert_equal(torch.from_numpy(backend.base_logprobs(rows)), expected, what, atol=1e-4)


def _keeps(subject: Subject) -> bool:
    return KEEPS_REFERENCE in subject.provides


OF_BACKENDS = (Check(check_a_reference_follows_the_policy, applies=_keeps),)
