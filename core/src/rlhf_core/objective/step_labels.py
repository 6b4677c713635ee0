"""A process reward model's loss on the labeled steps of one micro-batch. Each action is the last token of a step."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..batch.metric import Metric, Metrics, loss_metric, mean_metric
from ..contracts.backend import StepPlan
from .columns import ActionColumns


def step_label_objective(
    scores: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan
) -> tuple[Float[Tensor, ""], Metrics]:
    """Return this micro-batch's part of the update's loss, to be minimized, and its metrics.

    ``loss = sum over labeled steps t of -(y_t log sigmoid(s_t) + (1 - y_t) log(1 - sigmoid(s_t))) / T``, with the label
    ``y`` in [0, 1], the score ``s`` and the number ``T`` of labeled steps of the whole update. It is the cross-entropy
    over two label tokens whose logits differ by ``s``.

    Args:
        scores: the model's scores (M,) at each action, with gradients.
        columns: ``labels``.

    Raises:
        PluginError: the batch has no labels.

    Source: Lightman et al. 2023, arXiv:2305.20050, for a classifier of steps; with soft labels, the estimate of Wang et
    al. 2024 (Math-Shepherd), arXiv:2312.08935. OpenRLHF's ``PRMLoss`` with two reward tokens is equal.
    """
    mask = columns.grid.mask
    padded, labels = columns.grid.pad(scores), columns.padded("labels").to(scores.dtype)  # (B, A)
    token_loss = binary_cross_entropy_with_logits(padded, labels, reduction="none")  # (B, A)
    loss = (token_loss * mask).sum() / plan.normalizers.num_actions
    is_right = ((padded.detach() > 0) == (labels > 0.5)).to(scores.dtype)
    return loss, {
        "loss/steps": loss_metric(loss),
        "steps/accuracy": mean_metric(is_right, mask),
        "steps/good": mean_metric(padded.detach().sigmoid(), mask),
        "steps/label": mean_metric(labels, mask),
        "train/steps_labeled": Metric(mask.sum(), reduction="sum"),
    }
