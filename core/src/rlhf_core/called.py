"""Components that are called like functions, so that a function can be one: with what they are called, who is named
where they raise, and what comes back, such as one number for each action token."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, Generic, TypeVar

from .batch.metric import Metric
from .capabilities import SUPPLIED_BY_THE_LOOP
from .errors import ConfigError, PluginError, RLHFError, wrong_answer
from .lazy import torch
from .problem import is_ours, problem_of

AnswerT = TypeVar("AnswerT")

CALLED_KINDS: Mapping[str, tuple[str, ...]] = {
    "rlhf_advantage_estimators": ("batch",),
    "rlhf_policy_losses": ("inputs",),
    "rlhf_preference_losses": ("inputs",),
    "rlhf_is_corrections": ("old_logprobs", "rollout_logprobs", "action_mask"),
    "rlhf_kl_estimators": ("log_ratio",),
    "rlhf_eval_metrics": ("episodes",),
    "rlhf_lr_schedules": ("point",),
}
"""Hooks whose components are called, and the arguments that they are called with, by position."""


def check_definition(node: ast.stmt, hook: str, label: str) -> None:
    """Refuse a function, or a class by its ``__call__``, whose source shows that it cannot be called as its kind is.

    Raises:
        ConfigError: it takes other arguments.
    """
    arguments, called = CALLED_KINDS[hook], _called(node)
    # A decorator may change what the function takes.
    if called is None or called.decorator_list:
        return
    given = called.args
    positional = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
    own = positional[1:] if isinstance(node, ast.ClassDef) else positional
    required = len(own) - len(given.defaults)
    fits = required <= len(arguments) and (len(own) >= len(arguments) or given.vararg is not None)
    if not fits or None in given.kw_defaults:
        raise refused(label, arguments, [*own, *(one.arg for one in given.kwonlyargs)])


@contextmanager
def asking(who: str) -> Iterator[None]:
    """Name, in what a component's code raises in the body, the component and the call.

    Raises:
        PluginError: the code raised anything but an ``RLHFError``, which says itself what is wrong.
    """
    try:
        yield
    except RLHFError:
        raise
    except Exception as error:  # a plugin may raise anything
        found = problem_of(error)
        place = "".join(f" ({line})" for line in found.where[-1:] if not is_ours(line))
        raise PluginError(f"{who} {found.text}{place}", code="plugin/raised") from error


def _called(node: ast.stmt) -> ast.FunctionDef | None:
    """Return the definition of what is called; None: the source does not show it, as where a class inherits it."""
    if isinstance(node, ast.FunctionDef):
        return node
    body = node.body if isinstance(node, ast.ClassDef) else []
    methods = (one for one in body if isinstance(one, ast.FunctionDef))
    return next((one for one in methods if one.name == "__call__"), None)


def refused(label: str, arguments: Sequence[str], taken: Sequence[str]) -> ConfigError:
    """Return the error for what is called with ``arguments`` and takes others."""
    word = "argument" if len(arguments) == 1 else "arguments"
    return ConfigError(
        f"{label}: expected what can be called with {len(arguments)} {word}, "
        f"({', '.join(arguments)}), by position; it takes ({', '.join(taken)})",
        code="config/not-callable",
    )


def name_taken(who: str, name: str) -> PluginError:
    """Return the error for a component's metric that has the name of one of the run's."""
    return PluginError(
        f"{who}: {name} is the name of a metric of the run already; choose another one",
        code="metric/name-taken",
    )


@dataclass(frozen=True, slots=True)
class Checked(Generic[AnswerT]):
    """A component that is refused with its name where it answers what its kind does not promise.

    A loss that is a mean already would be broadcast, and train something else without a word.
    """

    component: Callable[..., AnswerT]
    expected: type[AnswerT]
    who: str
    """Component and origin, for messages."""
    unit: str = "action token"
    """Thing that the columns of the answer have a number for."""
    like: Callable[[Any], Mapping[str, torch.Tensor]] | None = None
    """Tensors of the shapes of the answer's columns, by what the component is given; None: all are as the mask is."""
    taken: Collection[str] = ()
    """Names of the run's own metrics, which the answer's metrics must not have."""

    def __post_init__(self) -> None:
        if not callable(self.component):
            raise wrong_answer(f"{self.who}: its factory", self.component, "what can be called")
        if hasattr(self.component, "state_dict") and not isinstance(
            self.component, torch.nn.Module
        ):
            shown = "what has a state_dict(), which no checkpoint keeps: that of a reward shaper is kept"
            raise wrong_answer(f"{self.who}: its factory", self.component, "no state", shown=shown)

    def __call__(self, *given: Any) -> AnswerT:
        """Return the component's answer.

        Raises:
            PluginError: it is of another type, shape or device, lacks a gradient that is needed, or has metrics that
                are broken or called like the run's own.
        """
        try:
            answer = self.component(*given)
        except (AttributeError, TypeError) as error:
            absent = [word for word in SUPPLIED_BY_THE_LOOP if getattr(given[0], word, 0) is None]
            if absent and any(word in str(error) for word in ("NoneType", *absent)):
                error.add_note(f"{', '.join(absent)}: None, unless the needs of {self.who} name it")
            raise
        self._require(isinstance(answer, self.expected), "", answer, self.expected.__name__)
        mask = getattr(given[0], "action_mask", given[-1])
        if isinstance(answer, torch.Tensor):
            self._check_column("", answer, mask, "")
            return answer
        like = {} if self.like is None else self.like(given[0])
        for field in fields(answer):  # type: ignore[arg-type]
            column, kind = getattr(answer, field.name), str(field.type)
            if field.name == "metrics":
                self._check_metrics(column)
            elif not (column is None and "None" in kind):
                self._check_column(field.name, column, like.get(field.name, mask), kind)
        policy: Any = getattr(given[0], "policy_logprobs", None)
        if getattr(policy, "requires_grad", False) and not answer.loss.requires_grad:  # type: ignore[attr-defined]
            learned = torch.where(mask, answer.loss, 0.0).any()  # type: ignore[attr-defined]
            wanted = "one by policy_logprobs: no detach()"
            self._require(not learned, "loss", answer, wanted, "no gradient")
            # Nothing is to be learned here, and a backend goes backward through every micro-batch.
            return replace(answer, loss=torch.where(mask, 0.0 * policy, 0.0))  # type: ignore[type-var]
        return answer

    def _check_column(self, name: str, column: Any, like: torch.Tensor, kind: str) -> None:
        self._require(isinstance(column, torch.Tensor), name, column, "a torch.Tensor")
        averaged = ", which the core averages" if name == "loss" else ""
        wanted = f"{tuple(like.shape)}, a number for each {self.unit}{averaged}"
        shape, device = f"shape {tuple(column.shape)}", f"device {column.device}"
        self._require(column.shape == like.shape, name, column, wanted, shape)
        self._require(column.device == like.device, name, column, like.device, device)
        is_bool = kind.startswith("Bool")
        fits = column.dtype == torch.bool if is_bool else column.is_floating_point()
        wanted = "torch.bool" if is_bool else "a floating-point dtype"
        self._require(fits, name, column, wanted, f"{column.dtype}")

    def _check_metrics(self, metrics: Any) -> None:
        self._require(isinstance(metrics, Mapping), "metrics", metrics, "Metric by name")
        for name, metric in metrics.items():
            if name in self.taken:
                raise name_taken(self.who, name)
            parts = (metric.total, metric.count) if isinstance(metric, Metric) else (metric, "")
            one = (
                hasattr(part, "__float__") and prod(getattr(part, "shape", ())) == 1
                for part in parts
            )
            wanted = "rlhf_core.contracts.Metric(total, count) of two numbers"
            self._require(all(one), f"metrics[{name!r}]", metric, wanted)

    def _require(self, ok: bool, name: str, found: object, wanted: object, shown: str = "") -> None:
        """Refuse the answer, or its field of this name; ``shown`` says what is wrong with it, if not all is."""
        if not ok:
            raise wrong_answer(self.who, found, wanted, field=name, shown=shown)
