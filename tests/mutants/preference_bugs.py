"""Bugs in preference losses: answers and policies mixed up, sums and means, factors, signs, gradients, overflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from rlhf_core.contracts import AnswerLogprobs, PreferenceInputs, PreferenceResult

from .mutant import Mutant
from .preference_formulas import CHECK

HOOK = "rlhf_preference_losses"
MODULE = "rlhf_plugin_algorithms.preference"
Loss = Callable[[PreferenceInputs], PreferenceResult]
Wrap = Callable[[Any], Any]


def on_inputs(change: Callable[[PreferenceInputs], PreferenceInputs]) -> Wrap:
    """Return the wrap of a component that sees changed inputs."""
    return lambda right: lambda inputs: right(change(inputs))


def on_answers(change: Callable[[AnswerLogprobs], AnswerLogprobs]) -> Wrap:
    """Return the wrap of a component that sees changed answers, of both kinds."""
    return on_inputs(
        lambda inputs: replace(
            inputs, chosen=change(inputs.chosen), rejected=change(inputs.rejected)
        )
    )


def on_result(change: Callable[[PreferenceResult], PreferenceResult]) -> Wrap:
    """Return the wrap of a component whose result is changed."""
    return lambda right: lambda inputs: change(right(inputs))


def scaled_margin(factor: float) -> Wrap:
    """Return the wrap of a function of two columns, with the columns scaled."""
    return lambda right: (
        lambda chosen, rejected, **options: right(factor * chosen, factor * rejected, **options)
    )


reference_minus_policy = on_answers(
    lambda each: replace(each, policy=2 * each.reference - each.policy)
)
exchanged = on_inputs(
    lambda inputs: replace(inputs, chosen=inputs.rejected, rejected=inputs.chosen)
)
without_rejected = on_inputs(
    lambda inputs: replace(
        inputs, rejected=replace(inputs.rejected, policy=inputs.rejected.reference)
    )
)
without_reference = on_answers(
    lambda each: replace(each, reference=torch.zeros_like(each.reference))
)
means_for_sums = on_answers(
    lambda each: replace(
        each, policy=each.policy / each.num_tokens, reference=each.reference / each.num_tokens
    )
)
sums_for_means = on_answers(lambda each: replace(each, num_tokens=torch.ones_like(each.num_tokens)))
one_number = on_result(
    lambda result: replace(result, loss=result.loss.mean().expand_as(result.loss))
)


def rewards_without_beta(right: Callable[..., PreferenceResult]) -> Callable[..., Any]:
    def wrong(self: Any, inputs: PreferenceInputs) -> PreferenceResult:
        result, beta = right(self, inputs), self.config.beta
        return replace(
            result,
            chosen_rewards=result.chosen_rewards / beta,
            rejected_rewards=result.rejected_rewards / beta,
        )

    return wrong


def beta_twice(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda chosen, rejected, *, beta: right(chosen, rejected, beta=beta * beta)


def log_of_sigmoid(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda chosen, rejected, *, beta: -torch.log(torch.sigmoid(beta * (chosen - rejected)))


def reference_with_gradient(right: Loss) -> Loss:
    def wrong(inputs: PreferenceInputs) -> PreferenceResult:
        first, second = (each.policy - each.reference for each in (inputs.chosen, inputs.rejected))
        return replace(right(inputs), loss=-logsigmoid(0.1 * (first - second)))

    return wrong


def smoothing_ignored(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda chosen, rejected, *, beta, label_smoothing: right(
        chosen, rejected, beta=beta, label_smoothing=0.0
    )


def wrong_labels_added(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda chosen, rejected, *, beta, label_smoothing: (
        -(1 - label_smoothing) * logsigmoid(beta * (chosen - rejected))
        - label_smoothing * logsigmoid(beta * (rejected - chosen))
    )


def not_divided(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *pair, beta, label_smoothing: (
        right(*pair, beta=beta, label_smoothing=label_smoothing) * (1 - 2 * label_smoothing)
    )


def always_sigmoid(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda chosen, rejected, *, beta: -logsigmoid(beta * (chosen - rejected))


def half_the_beta(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda chosen, rejected, *, beta: right(chosen, rejected, beta=beta / 2)


def kl_not_clamped(right: Loss) -> Loss:
    """A point below 0 is the same as answers that are all that much likelier, and a point at 0."""

    def wrong(inputs: PreferenceInputs) -> PreferenceResult:
        below = inputs.mismatched_kl.clamp(max=0.0)
        nearer = [
            replace(each, policy=each.policy - below) for each in (inputs.chosen, inputs.rejected)
        ]
        return right(replace(inputs, chosen=nearer[0], rejected=nearer[1]))

    return wrong


def kl_of_the_answers(right: Loss) -> Loss:
    """The reference point is the mean log-ratio of whatever shares the micro-batch."""

    def wrong(inputs: PreferenceInputs) -> PreferenceResult:
        ratios = torch.cat([inputs.chosen.log_ratio, inputs.rejected.log_ratio])
        return right(replace(inputs, mismatched_kl=ratios.mean().detach()))

    return wrong


def kl_with_gradient(right: Loss) -> Loss:
    def wrong(inputs: PreferenceInputs) -> PreferenceResult:
        kl = inputs.mismatched_kl.clamp(min=0.0)
        gains = torch.cat([inputs.chosen.log_ratio - kl, kl - inputs.rejected.log_ratio])
        return replace(right(inputs), loss=torch.sigmoid(-0.1 * gains))

    return wrong


def kl_added_to_good_answers(right: Loss) -> Loss:
    def wrong(inputs: PreferenceInputs) -> PreferenceResult:
        nearer = inputs.chosen.policy + 2 * inputs.mismatched_kl.detach().clamp(min=0.0)
        return right(replace(inputs, chosen=replace(inputs.chosen, policy=nearer)))

    return wrong


def weights_exchanged(right: Any) -> Loss:
    options = right.config
    exchanged_weights = {
        "desirable_weight": options.undesirable_weight,
        "undesirable_weight": options.desirable_weight,
    }
    return type(right)(options.model_copy(update=exchanged_weights))


def log1p_of_minus_exp(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda mean_logprob: mean_logprob - torch.log1p(-mean_logprob.exp())


def magic_constant(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda mean_logprob: mean_logprob - torch.log(-mean_logprob.exp() + 1.0001)


def without_supervision(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(chosen: torch.Tensor, rejected: torch.Tensor) -> Any:
        return right(chosen, rejected)._replace(nll=torch.zeros_like(chosen))

    return wrong


def margin_in_favor(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *pair, beta, gamma: right(*pair, beta=beta, gamma=-gamma)


def margin_times_beta(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *pair, beta, gamma: right(*pair, beta=beta, gamma=beta * gamma)


def _bug(
    component: str, bug: str, source: str, wrap: Wrap, function: str = "", **options: Any
) -> Mutant:
    return Mutant(
        bug=bug,
        source=source,
        hook=HOOK,
        component=component,
        target=f"{MODULE}.{component}:{function}" if function else "",
        wrap=wrap,
        options=options,
        also=(CHECK,),
    )


MUTANTS = (
    _bug(
        "dpo",
        "policy and reference are exchanged",
        "the class of TRL#4857, wrong log-probs in a comparison",
        reference_minus_policy,
    ),
    _bug(
        "dpo",
        "chosen and rejected answers are exchanged",
        "no issue cited: columns of data in the other order",
        exchanged,
    ),
    _bug(
        "dpo",
        "the rejected answer is left out",
        "exact-optimization#2, as it was reported",
        without_rejected,
    ),
    _bug(
        "dpo",
        "the reference is left out",
        "the class of open-unlearning#30, a loss of other log-probs",
        without_reference,
    ),
    _bug(
        "dpo",
        "log-probs are means over tokens, not sums",
        "TRL#789, tried by users",
        means_for_sums,
    ),
    _bug("dpo", "beta counts twice", "MaxText#1530", beta_twice, "dpo_loss"),
    _bug(
        "dpo",
        "rewards are without beta",
        "the class of beta-DPO#1",
        rewards_without_beta,
        "DpoLoss.__call__",
    ),
    _bug(
        "dpo",
        "every pair has the mean of its micro-batch",
        "the class of unsloth#1178, micro-batches of unequal size",
        one_number,
    ),
    _bug(
        "dpo",
        "a gradient flows to the reference",
        "no issue cited: a reference that shares weights, without no_grad",
        reference_with_gradient,
    ),
    _bug(
        "dpo",
        "the logarithm of a sigmoid that is 0",
        "the class of TRL#2274, log of sigmoid",
        log_of_sigmoid,
        "dpo_loss",
    ),
    _bug(
        "cdpo",
        "the label smoothing is ignored",
        "TRL 1.16.0, sigmoid of the DPO trainer",
        smoothing_ignored,
        "cdpo_loss",
    ),
    _bug(
        "robust",
        "wrong labels are added, not subtracted: conservative DPO",
        "no issue cited: two losses with one option",
        wrong_labels_added,
        "robust_loss",
    ),
    _bug(
        "robust",
        "the correction is not divided by 1 - 2 epsilon",
        "no issue cited: a scale that learning hides",
        not_divided,
        "robust_loss",
    ),
    _bug(
        "ipo",
        "the loss is DPO's, whatever is chosen",
        "ms-swift#10167",
        always_sigmoid,
        "ipo_loss",
    ),
    _bug(
        "ipo",
        "log-ratios are per token where sums are asked for",
        "TRL#1265, TRL#1677: sums and means mixed up",
        means_for_sums,
    ),
    _bug(
        "ipo",
        "log-ratios are sums where they should be per token",
        "TRL#1265, torchtune#1291",
        sums_for_means,
        length_normalized=True,
    ),
    _bug(
        "ipo",
        "the distance is 1 / beta, not half of it",
        "no issue cited: tau of the paper and beta of others",
        half_the_beta,
        "ipo_loss",
    ),
    _bug(
        "hinge",
        "the margin has the wrong sign",
        "the class of TRL#5731, a wrong fused loss",
        scaled_margin(-1.0),
        "hinge_loss",
    ),
    _bug(
        "kto",
        "an estimate of the KL below 0 is not clamped",
        "no issue cited: the clamp of the paper left out",
        kl_not_clamped,
    ),
    _bug(
        "kto",
        "the KL is that of the answers in the micro-batch",
        "TRL#1911, answers beside their own prompts in the KL",
        kl_of_the_answers,
    ),
    _bug(
        "kto",
        "a gradient flows through the KL",
        "OpenRLHF before its removal, the KL of paired batches",
        kl_with_gradient,
    ),
    _bug(
        "kto",
        "the KL raises the gain of desirable answers",
        "no issue cited: a sign for each of the two kinds",
        kl_added_to_good_answers,
    ),
    _bug(
        "kto",
        "the weights of the two kinds are exchanged",
        "no issue cited: two options that are alike",
        weights_exchanged,
        desirable_weight=2.0,
    ),
    _bug(
        "orpo",
        "log(1 - P) cancels where P is near 1",
        "TRL#1473, #2564, #4763",
        log1p_of_minus_exp,
        "log_odds",
    ),
    _bug("orpo", "1.0001 in place of 1 in the odds", "ColossalAI#6407", magic_constant, "log_odds"),
    _bug(
        "orpo",
        "ORPO's log-probs are sums, not means",
        "the class of TRL#1265, sums and means mixed up",
        sums_for_means,
    ),
    _bug(
        "orpo",
        "the supervised loss is left out",
        "no issue cited: only the new term of the paper",
        without_supervision,
        "orpo_terms",
    ),
    _bug(
        "simpo",
        "the target margin has the wrong sign",
        "no issue cited: a margin that is given away",
        margin_in_favor,
        "simpo_loss",
    ),
    _bug(
        "simpo",
        "the target margin counts beta times",
        "no issue cited: gamma and gamma / beta of the authors' code",
        margin_times_beta,
        "simpo_loss",
    ),
    _bug(
        "simpo",
        "SimPO's log-probs are sums, not means",
        "the class of TRL#1265, sums and means mixed up",
        sums_for_means,
    ),
)
