"""The check of what a training step returns of its own forward pass."""

from __future__ import annotations

from dataclasses import replace

import torch

from .comparing import assert_equal
from .running_backend import running
from .subject import Subject
from .tiny_policy import PlainModel, step_plan, tiny_model, train_batch


def check_a_step_returns_what_its_plan_asks_for(subject: Subject) -> None:
    """``return_logprobs``, ``return_entropies`` and ``return_losses`` give what the loss was computed with, and what it
    was: before the update, at the temperature, in the order of the batch, over several micro-batches. A plan that asks
    for none gets none. A backend may leave entropies and losses out, which observers alone read."""
    batch = train_batch()
    plan = step_plan(batch.trajectories)
    asking = replace(plan, return_logprobs=True, return_entropies=True, return_losses=True)
    with tiny_model() as folder:
        with torch.no_grad():
            plain = PlainModel(folder).outputs(batch.trajectories, temperature=0.6)
        with running(subject, folder, temperature=0.6, max_tokens_per_micro_batch=12) as backend:
            answered = backend.train_step(batch, asking)
            silent = backend.train_step(batch, plan)
    losses = -torch.from_numpy(batch.columns["advantages"])  # the policy's gradient, at ratios of 1
    for name, found, expected in (
        ("logprobs", answered.logprobs, plain.logprobs),
        ("entropies", answered.entropies, plain.entropies),
        ("losses", answered.losses, losses),
        ("clipped", answered.clipped, torch.zeros_like(losses)),
    ):
        if found is None and name != "logprobs":
            continue
        assert found is not None, f"{name} of a step were asked for; expected an array, got None"
        assert_equal(torch.from_numpy(found), expected, f"{name} of a step", atol=1e-3)
    assert silent.logprobs is None, "log-probs of a step, which its plan does not ask for"
    assert silent.entropies is None, "entropies of a step, which its plan does not ask for"
    assert silent.losses is None, "losses of a step, which its plan does not ask for"
