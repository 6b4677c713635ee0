"""Bugs in the training of reward models: the token that is read, pairs, margins, labels and means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .mutant import Mutant
from .plain_scores import CHECK

OBJECTIVE = "rlhf_core.objective"
Function = Callable[..., Any]


def exchanged(right: Function) -> Function:
    def wrong(objective: Any, scores: Any, columns: Any, plan: Any) -> Any:
        return right(objective, scores, replace(columns, rewards=1 - columns.rewards), plan)

    return wrong


def margin_in_favor(right: Function) -> Function:
    return lambda chosen, rejected, margin=None: right(
        chosen, rejected, None if margin is None else -margin
    )


def sum_over_pairs(right: Function) -> Function:
    def wrong(objective: Any, scores: Any, columns: Any, plan: Any) -> Any:
        totals = replace(plan.normalizers, num_sequences=2)
        return right(objective, scores, columns, replace(plan, normalizers=totals))

    return wrong


def last_column(right: Function) -> Function:
    """The score of a shorter row is read at its padding."""
    del right
    return lambda grid, flat: grid.pad(flat)[:, -1]


def before_the_last(right: Function) -> Function:
    """The hidden state is that of the token before, as for a value."""
    return lambda *arguments, **options: right(*arguments, **{**options, "at_actions": False})


def with_labels(change: Callable[[Any], Any]) -> Callable[[Function], Function]:
    def wrap(right: Function) -> Function:
        def wrong(scores: Any, columns: Any, plan: Any) -> Any:
            flat = {**columns.flat, "labels": change(columns.flat["labels"])}
            return right(scores, replace(columns, flat=flat), plan)

        return wrong

    return wrap


def sum_over_steps(right: Function) -> Function:
    def wrong(scores: Any, columns: Any, plan: Any) -> Any:
        totals = replace(plan.normalizers, num_actions=1)
        return right(scores, columns, replace(plan, normalizers=totals))

    return wrong


def _torch(bug: str, source: str, target: str, wrap: Function) -> Mutant:
    return Mutant(
        bug=bug,
        source=source,
        hook="rlhf_train_backends",
        component="torch",
        target=target,
        wrap=wrap,
        also=(CHECK,),
    )


MUTANTS = (
    _torch(
        "a reward model learns the rejected answers",
        "no issue cited: columns of data in the other order",
        f"{OBJECTIVE}.built:ranking_objective",
        exchanged,
    ),
    _torch(
        "a pair's margin has the wrong sign",
        "no issue cited: a margin that is given away",
        f"{OBJECTIVE}.ranking:ranking_loss",
        margin_in_favor,
    ),
    _torch(
        "the ranking loss is a sum over pairs",
        "the class of unsloth#1178, sums and means of batches mixed up",
        f"{OBJECTIVE}.built:ranking_objective",
        sum_over_pairs,
    ),
    _torch(
        "the score of a padded row is read at its padding",
        "no issue cited: the last column of a padded batch",
        f"{OBJECTIVE}.columns:ActionGrid.last",
        last_column,
    ),
    _torch(
        "the score is read before the last token",
        "no issue cited: values and scores by one head",
        "rlhf_plugin_local.torch_backend:pack_rows",
        before_the_last,
    ),
    _torch(
        "labels of steps are those of the next step",
        "no issue cited: labels shifted for a language model",
        f"{OBJECTIVE}.built:step_label_objective",
        with_labels(lambda labels: labels.roll(-1)),
    ),
    _torch(
        "the loss of labeled steps is a sum",
        "the class of unsloth#1178, sums and means of batches mixed up",
        f"{OBJECTIVE}.built:step_label_objective",
        sum_over_steps,
    ),
)
