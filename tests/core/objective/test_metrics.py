"""Metrics of a step, merged and read."""

import torch

from rlhf_core.batch.metric import loss_metric
from rlhf_core.contracts import Metric
from rlhf_core.objective import mean_metric, read_metrics


def test_a_mean_is_over_action_tokens_whatever_stands_at_padding():
    values = torch.tensor([[1.0, 2.0], [6.0, float("nan")]])
    mask = torch.tensor([[True, True], [True, False]])

    assert mean_metric(values, mask).value() == 3.0


def test_parts_are_merged_into_plain_numbers():
    parts = [
        {
            "loss/policy": Metric(torch.tensor(0.25), reduction="share"),
            "policy/entropy": Metric(torch.tensor(6.0), torch.tensor(3)),
            "train/tokens": Metric(5, reduction="sum"),
        },
        {
            "loss/policy": Metric(torch.tensor(0.5), reduction="share"),
            "policy/entropy": Metric(torch.tensor(2.0), torch.tensor(1)),
        },
    ]

    merged = read_metrics(parts)

    assert merged["loss/policy"].value() == 0.75
    assert merged["policy/entropy"].value() == 2.0
    assert merged["train/tokens"].value() == 5.0
    assert not [
        name
        for name, metric in merged.items()
        for number in (metric.total, metric.count)
        if isinstance(number, torch.Tensor)
    ]


def test_no_parts_give_no_metrics():
    assert read_metrics([]) == {}


def test_a_metric_keeps_no_graph():
    metric = loss_metric(torch.tensor(3.0, requires_grad=True) * 2)

    assert not metric.total.requires_grad
    assert metric.reduction == "share"
