"""Bugs in the training backend and in optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rlhf_testing.conformance.columns import EOS_ID
from rlhf_torch.rows.prompt_sharing import Starts, prompt_lengths

from .mutant import Mutant

BACKEND, OPTIMIZER = "rlhf_train_backends", "rlhf_optimizers"
POLICY = "rlhf_core.objective.policy"
Function = Callable[..., Any]


def predicted_from_itself(right: Function) -> Function:
    """The hidden state at a token predicts the next one, not that token."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        packed = right(*arguments, **options)
        return replace(packed, predictors=packed.predictors + 1)

    return wrong


def eos_is_padding(right: Function) -> Function:
    """Whatever equals the padding token, here end-of-sequence, is taken for padding."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        packed = right(*arguments, **options)
        mask = packed.grid.mask.clone().view(-1)
        mask[packed.grid.index[packed.targets == EOS_ID]] = False
        grid = replace(packed.grid, mask=mask.view_as(packed.grid.mask))
        return replace(packed, grid=grid)

    return wrong


def one_long_sequence(right: Any) -> Function:
    """Packed sequences see each other."""

    def wrong(offsets: Any, device: Any, blocks: Any = None) -> Any:
        return right(offsets[[0, -1]], device, blocks)

    return wrong


def prompts_are_told_by_their_length(right: Function) -> Function:
    def wrong(batch: Any) -> Any:
        lengths = prompt_lengths(batch)
        alike = np.diff(lengths, prepend=0) == 0
        rows = np.arange(len(batch))
        firsts = np.maximum.accumulate(np.where(alike, 0, rows))
        return Starts(lengths=np.where(alike, lengths, 0), sources=np.where(alike, firsts, rows))

    return wrong


def only_the_first_sample_moves_the_prompt(right: Any) -> Function:
    """The gradient of a prompt's keys and values is that of one sample."""

    def wrong(*arguments: Any) -> Any:
        layout = right(*arguments)
        layout.copies.shared = []
        return layout

    return wrong


def no_temperature(right: Function) -> Function:
    def wrong(*arguments: Any, temperature: float, **options: Any) -> Any:
        return right(*arguments, temperature=1.0, **options)

    return wrong


def entropy_without_temperature(right: Function) -> Function:
    def wrong(*arguments: Any, temperature: float, **options: Any) -> Any:
        plain = right(*arguments, temperature=1.0, **options)
        scores = right(*arguments, temperature=temperature, **options)
        return replace(scores, entropies=plain.entropies)

    return wrong


def totals_of_the_micro_batch(right: Function) -> Function:
    def wrong(token_loss: Any, mask: Any, aggregation: Any, totals: Any, weights: Any) -> Any:
        own = replace(totals, num_actions=int(mask.sum()), num_sequences=len(mask))
        return right(token_loss, mask, aggregation, own, weights)

    return wrong


def dropped_tokens_leave_the_divisor(right: Function) -> Function:
    def wrong(token_loss: Any, mask: Any, aggregation: Any, totals: Any, weights: Any) -> Any:
        counted = max(1, int((token_loss != 0).sum()))
        return right(token_loss, mask, aggregation, replace(totals, num_actions=counted), weights)

    return wrong


def weights_put_on_twice(right: Function) -> Function:
    """The loss is scaled by the correction although the core has done so."""

    def wrong(*arguments: Any) -> Any:
        return 0.5 * right(*arguments)

    return wrong


def rows_weigh_alike(right: Function) -> Function:
    """Each row of an episode counts as much as a whole episode does."""

    def wrong(token_loss: Any, mask: Any, aggregation: Any, totals: Any, weights: Any) -> Any:
        return right(token_loss, mask, aggregation, totals, None)

    return wrong


def kl_upside_down(right: Function) -> Function:
    def wrong(policy: Any, reference: Any, estimator: Any, **options: Any) -> Any:
        return right(reference, policy, estimator, **options)

    return wrong


def old_logprobs_of_another_pass(right: Function) -> Function:
    """The old log-probs come from a pass in bfloat16."""

    def wrong(*inputs: Any, old_logprobs: Any, **rows: Any) -> Any:
        return right(*inputs, old_logprobs=old_logprobs.bfloat16().float(), **rows)

    return wrong


def old_logprobs_keep_their_graph(right: Function) -> Function:
    def wrong(*inputs: Any, policy_logprobs: Any, old_logprobs: Any, **rows: Any) -> Any:
        old = policy_logprobs + (old_logprobs - policy_logprobs.detach())
        return right(*inputs, policy_logprobs=policy_logprobs, old_logprobs=old, **rows)

    return wrong


def nothing_is_too_much(right: Any) -> Any:
    return SimpleNamespace(isfinite=lambda value: True)


def resume_forgets_the_optimizer(right: Function) -> Function:
    def wrong(folder: Any, model: Any, updater: Any) -> None:
        right(folder, model, updater)
        updater.optimizer.state.clear()

    return wrong


def drops_a_parameter(right: Function) -> Function:
    def wrong(self: Any, named_parameters: Any) -> Any:
        return right(self, list(named_parameters)[1:])

    return wrong


def decays_gains(right: Function) -> Function:
    def wrong(self: Any, named_parameters: Any) -> Any:
        groups = right(self, named_parameters)
        return [replace(group, options={"weight_decay": 0.1}) for group in groups]

    return wrong


def coupled_decay(right: Function) -> Function:
    """Weights shrink by a constant at each step, whatever the learning rate is."""

    def wrong(self: Any, groups: Any) -> Any:
        optimizer = right(self, groups)

        def shrink(*_: Any) -> None:
            with torch.no_grad():
                for group in optimizer.param_groups:
                    torch._foreach_mul_(group["params"], 0.999)

        optimizer.register_step_post_hook(shrink)
        return optimizer

    return wrong


def _torch(bug: str, source: str, target: str, wrap: Function) -> Mutant:
    return Mutant(bug=bug, source=source, hook=BACKEND, component="torch", target=target, wrap=wrap)


def _adam(bug: str, source: str, target: str, wrap: Function) -> Mutant:
    return Mutant(
        bug=bug,
        source=source,
        hook=OPTIMIZER,
        component="adam",
        target=f"rlhf_plugin_algorithms.optimizers.{target}",
        wrap=wrap,
    )


MUTANTS = (
    _torch(
        "log-probs are read one token too late",
        "the class of AReaL#1346, tokens and masks off by one",
        "rlhf_plugin_local.torch_backend:pack_rows",
        predicted_from_itself,
    ),
    _torch(
        "end-of-sequence is not trained where it equals padding",
        "TRL#6357",
        "rlhf_plugin_local.torch_backend:pack_rows",
        eos_is_padding,
    ),
    _torch(
        "packed sequences attend to each other",
        "no issue cited: packing without a mask per sequence",
        "rlhf_torch.rows.packed_rows:PackedLayout",
        one_long_sequence,
    ),
    _torch(
        "prompts of one length are taken for one prompt",
        "no issue cited: prompts computed once",
        "rlhf_torch.rows.packed_rows:shared_starts",
        prompts_are_told_by_their_length,
    ),
    _torch(
        "a prompt's keys get the gradient of one sample only",
        "no issue cited: prompts computed once",
        "rlhf_torch.rows.packed_rows:SharedLayout",
        only_the_first_sample_moves_the_prompt,
    ),
    _torch(
        "the trainer ignores the temperature",
        "verl#6935, temperature not applied to some tensors",
        "rlhf_torch.scoring.scoring_backend:action_scores",
        no_temperature,
    ),
    _torch(
        "the scoring pass ignores the temperature",
        "slime#2085, scored at another temperature",
        "rlhf_torch.scoring.scoring_backend:action_statistics",
        no_temperature,
    ),
    _torch(
        "the entropy ignores the temperature",
        "the class of verl#6935",
        "rlhf_torch.scoring.scoring_backend:action_scores",
        entropy_without_temperature,
    ),
    _torch(
        "each micro-batch is normalized by its own totals",
        "verl#6957, #7225, #5366; prime-rl#2034, #2562; TRL#6439",
        f"{POLICY}:reduced",
        totals_of_the_micro_batch,
    ),
    _torch(
        "tokens that a correction drops leave the denominator",
        "SkyRL#1296, token-mean redefined",
        f"{POLICY}:reduced",
        dropped_tokens_leave_the_divisor,
    ),
    _torch(
        "the loss is scaled a second time",
        "SkyRL#1420, #1751, a factor of the parallel size",
        f"{POLICY}:reduced",
        weights_put_on_twice,
    ),
    _torch(
        "an episode that was cut into several rows weighs more",
        "miles#2378, agent-lightning#462: rows counted as samples",
        f"{POLICY}:reduced",
        rows_weigh_alike,
    ),
    _torch(
        "the KL to the reference is upside down",
        "the class of TRL#5731, a wrong divergence",
        f"{POLICY}:kl_estimate",
        kl_upside_down,
    ),
    _torch(
        "old and new log-probs differ before any update",
        "verl#2088, verl#2996",
        f"{POLICY}:_loss_inputs",
        old_logprobs_of_another_pass,
    ),
    _torch(
        "the old log-probs keep their graph",
        "the class of verl#2088, old and new log-probs mixed up",
        f"{POLICY}:_loss_inputs",
        old_logprobs_keep_their_graph,
    ),
    _torch(
        "a gradient that is nan reaches the weights",
        "OpenRLHF#1240, one nan poisons the loss",
        "rlhf_torch.training.updater:math",
        nothing_is_too_much,
    ),
    _torch(
        "a resumed run starts with an empty optimizer",
        "open-instruct#1823, OpenRLHF 0.11.2: state lost on resume",
        "rlhf_plugin_local.torch_backend:load_state",
        resume_forgets_the_optimizer,
    ),
    _adam(
        "a parameter is in no group and is never trained",
        "no issue cited: parameter groups by lists of names",
        "groups:SplitsByDecay.parameter_groups",
        drops_a_parameter,
    ),
    _adam(
        "weight decay on gains and biases",
        "no issue cited: a common default of optimizers",
        "groups:SplitsByDecay.parameter_groups",
        decays_gains,
    ),
    _adam(
        "weights change at a learning rate of 0",
        "open-instruct#1473, a gap that grows at learning rate 0",
        "adam:Adam.create",
        coupled_decay,
    ),
)
