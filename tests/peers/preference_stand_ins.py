"""What the peers' preference losses want around their tensors, and a batch as answers to prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rlhf_core.contracts import AnswerLogprobs, MatchedPairs, PreferenceInputs

from .batches import Batch, rows_of
from .released import load
from .stand_ins import OneProcess

TRL_DPO = "trl.trainer.dpo_trainer.DPOTrainer"
TRL_KTO = "trl.trainer.kto_trainer.KTOTrainer"


def answers_of(batch: Batch) -> AnswerLogprobs:
    """Return the rows of a batch as answers."""
    return AnswerLogprobs(
        policy=batch.policy_logprobs.sum(dim=1),
        reference=batch.ref_logprobs.sum(dim=1),
        num_tokens=batch.lengths,
    )


def pairs_of(batch: Batch) -> PreferenceInputs:
    """Return the rows as pairs: the first half is chosen, the second rejected, as TRL has them."""
    half = len(batch.mask) // 2
    chosen, rejected = (
        answers_of(rows_of(batch, slice(first, first + half))) for first in (0, half)
    )
    return PreferenceInputs(
        chosen=chosen, rejected=rejected, matched=MatchedPairs.of(chosen, rejected)
    )


def is_desirable(batch: Batch) -> Tensor:
    """(B,) bool: about half of the rows, in no order."""
    return batch.row_advantages > 0


def mismatched_kl(batch: Batch) -> Tensor:
    """Mean log-ratio of other log-probs than those of the answers, of either sign."""
    return (batch.old_logprobs - batch.teacher_logprobs).sum(dim=1).mean()


def kto_inputs(batch: Batch) -> PreferenceInputs:
    """Return the rows as answers that are good or bad by themselves."""
    desirable, every = is_desirable(batch), answers_of(batch)

    def part(rows: Tensor) -> AnswerLogprobs:
        assert every.reference is not None
        return AnswerLogprobs(
            policy=every.policy[rows],
            reference=every.reference[rows],
            num_tokens=every.num_tokens[rows],
        )

    return PreferenceInputs(
        chosen=part(desirable), rejected=part(~desirable), mismatched_kl=mismatched_kl(batch)
    )


def _outputs(logprobs: Tensor, sum_pi_squared: Tensor | None = None) -> SimpleNamespace:
    """What TRL's models return with a fused head: log-probs of the labels, and statistics that are only logged."""
    nothing = torch.zeros_like(logprobs).detach()
    return SimpleNamespace(
        log_probs=logprobs,
        entropy=nothing,
        mean_logits=nothing,
        is_top1=nothing.bool(),
        log_sum_sq_probs=None if sum_pi_squared is None else sum_pi_squared.log(),
    )


def _tokens(mask: Tensor) -> dict[str, Tensor]:
    """Inputs of rows that begin with one token of a prompt."""
    whole = torch.nn.functional.pad(mask.long(), (1, 0))
    ids = torch.zeros_like(whole)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": whole}


def _trainer(**attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=OneProcess(),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        **attributes,
    )


def trl_dpo_loss(
    batch: Batch,
    *loss_types: str,
    beta: float,
    label_smoothing: float = 0.0,
    weights: Sequence[float] = (1.0,),
    f_divergence: str = "reverse_kl",
    f_alpha: float = 0.5,
    ld_alpha: float | None = None,
    use_weighting: bool = False,
) -> Tensor:
    """Return the loss of TRL's DPO trainer: its own method, unbound, without a model.

    Args:
        weights: one for each type of loss.
        f_alpha: its ``f_alpha_divergence_coef``.
    """
    whole = rows_of(batch, slice(0, len(batch.mask) // 2 * 2))
    reference = whole.ref_logprobs
    squares = torch.where(whole.mask, whole.sum_pi_squared, 1.0)  # it takes the log of padding too
    if ld_alpha is not None:  # the trainer weighs those that it computes itself
        shorter = torch.minimum(*whole.lengths.chunk(2)).repeat(2)
        beyond = torch.arange(whole.mask.shape[1]) >= shorter[:, None]
        reference = torch.where(beyond, ld_alpha * reference, reference)
    chosen, rejected = reference.sum(dim=1).chunk(2)
    trainer = _trainer(
        beta=beta,
        label_smoothing=label_smoothing,
        loss_types=loss_types,
        loss_weights=weights,
        f_divergence_type=f_divergence,
        f_alpha_divergence_coef=f_alpha,
        ld_alpha=ld_alpha,
        use_weighting=use_weighting,
    )
    inputs = {
        **_tokens(whole.mask),
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    return _class(TRL_DPO)._compute_loss(
        trainer, lambda **_: _outputs(whole.policy_logprobs, squares), inputs, False
    )


def trl_kto_loss(batch: Batch, *, beta: float, desirable: float, undesirable: float) -> Tensor:
    """Return the loss of TRL's KTO trainer: its own method, unbound, without a model."""
    kto = _class(TRL_KTO)
    tokens, others = _tokens(batch.mask), _tokens(batch.mask)

    def model(*, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        answers = input_ids is tokens["input_ids"]
        return _outputs(batch.policy_logprobs if answers else batch.old_logprobs)

    trainer = _trainer(
        beta=beta,
        desirable_weight=desirable,
        undesirable_weight=undesirable,
        loss_type="kto",
        calculate_KL=True,
    )
    trainer._compute_kl_logps = lambda *arguments: kto._compute_kl_logps(trainer, *arguments)
    inputs = {
        **tokens,
        **{f"KL_{name}": value for name, value in others.items()},
        "label": is_desirable(batch),
        "ref_logps": batch.ref_logprobs.sum(dim=1),
        "ref_KL_logps": batch.teacher_logprobs.sum(dim=1),
    }
    return kto._compute_loss(trainer, model, inputs, False)


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(load(module), name)


def trl_simpo_losses(chosen: Tensor, rejected: Tensor, *, beta: float, gamma: float) -> Tensor:
    """Return the losses of TRL's CPO trainer with SimPO, of mean log-probs."""
    trainer = SimpleNamespace(
        alpha=0.0,
        beta=beta,
        simpo_gamma=gamma,
        label_smoothing=0.0,
        loss_type="simpo",
        accelerator=OneProcess(),
    )
    cpo = _class("trl.experimental.cpo.cpo_trainer.CPOTrainer")
    return cpo.cpo_loss(trainer, chosen, rejected)[0]


def trl_odds_ratio_losses(chosen: Tensor, rejected: Tensor, *, weight: float) -> Tensor:
    """Return the weighted L_OR of TRL's ORPO trainer, which subtracts what its function returns, of mean log-probs."""
    trainer = SimpleNamespace(beta=weight, accelerator=OneProcess())
    orpo = _class("trl.experimental.orpo.orpo_trainer.ORPOTrainer")
    return -orpo.odds_ratio_loss(trainer, chosen, rejected)[0]
