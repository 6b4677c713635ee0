"""The options of ``rlhf dpo``."""

from __future__ import annotations

from pydantic import Field

from rlhf_config import (
    Labels,
    OptionTree,
    PreferenceTermOptions,
    ReferenceSync,
    Selection,
    Selections,
    Selector,
    reference_rules,
    reference_without_effect,
    refuse_typed,
)
from rlhf_core import CapabilityError, Config, ConfigError
from rlhf_core.capabilities import UNPAIRED_ANSWERS
from rlhf_core.plugins import Plugins
from rlhf_data import LabeledColumns, PairColumns

from ..options import SELECTORS, ExampleData, ExampleOptions, cautions_at, check, data, models

FULL_RATE = 1e-6
"""The learning rate of ``dpo.toml``, by which an adapter's is judged."""
METRICS = ("loss", "margin")
"""Metrics of held-out sets; pairs have accuracy too."""
SUPPLIED = frozenset({"ref_logprobs", "mismatched_kl", "matched_pairs"})
"""Needs of losses that the command meets."""
COLUMNS_OF_PAIRS = ("chosen_key", "rejected_key")
COLUMNS_OF_ANSWERS = ("response_key", "messages_key", "label_key")


class DpoData(PairColumns, LabeledColumns, ExampleData):
    """Sets of pairs; for a loss on single answers, sets of answers with labels."""


class PreferenceTerms(Config):
    use: tuple[str, ...] = Field(
        (),
        description="further preference losses, each added with its weight, as MPO adds bco to dpo; unset: none",
    )


class PreferenceSection(Config):
    loss: str = Field(description="preference loss; its options are in the section named after it")
    weight: float = Field(
        1.0, gt=0.0, le=1000.0, description="factor of this loss, if there are further ones"
    )
    terms: PreferenceTerms = PreferenceTerms()
    nll_coef: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="factor of the chosen answers' negative log-likelihood per token, which is added to the loss; 0: "
        "not added",
    )
    ld_alpha: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="weight, in an answer's log-prob, of its tokens beyond the length of the pair's shorter answer "
        "(LD-DPO, arXiv:2409.06411); 1: as all others; 0: they have no effect",
    )
    wpo: bool = Field(
        False,
        description="weigh each pair by how probable its answers are for the model before the update, so that pairs of "
        "another model count as far as this one might have written them (WPO, arXiv:2406.11827)",
    )


class DpoOptions(ExampleOptions):
    """All options of ``rlhf dpo`` but those of components."""

    output: str = Field("runs/dpo", min_length=1, description="folder for all files of the run")
    data: DpoData = DpoData()
    preference: PreferenceSection
    ref: ReferenceSync = ReferenceSync()


def losses_of(selections: Selections) -> tuple[Selection, ...]:
    """Return the chosen loss and the further ones."""
    return (*selections["preference.loss"], *selections["preference.terms.use"])


def weight_of(loss: Selection, run: DpoOptions) -> float:
    """Return the factor of the chosen loss, or of a further one."""
    return run.preference.weight if loss.term is None else loss.term.weight


def is_single(loss: Selection) -> bool:
    """Return whether a loss learns from single answers, not from pairs."""
    return UNPAIRED_ANSWERS in loss.registered.component.provides


def _check(run: DpoOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    losses = losses_of(selections)
    has_pairs, name = not is_single(losses[0]), losses[0].registered.name
    for loss in losses:
        _check_loss(loss, losses[0], labels)
    if len(losses) == 1:
        refuse_typed(
            [("preference.weight", "there is one loss. Add --preference.terms.use.")], labels
        )
    if not any("ref_logprobs" in loss.needs for loss in losses):
        refuse_typed([("ref.sync_every", f"{name} looks at no reference. Leave it out.")], labels)
    refuse_typed(reference_without_effect(run.ref), labels)
    for problem in reference_rules(run.ref, selections, labels):
        raise problem
    if not has_pairs and run.preference.nll_coef:
        raise ConfigError(
            f"{labels('preference.nll_coef')} {run.preference.nll_coef}: expected 0 with {name}, which learns from "
            "answers without a partner. Leave it out.",
            code="config/nll-of-single-answers",
        )
    _check_lengths(run, losses, labels)
    _check_wpo(run, losses, labels)
    useless = COLUMNS_OF_ANSWERS if has_pairs else COLUMNS_OF_PAIRS
    reads = "pairs" if has_pairs else "single answers"
    refuse_typed(((f"data.{key}", f"{name} reads {reads}.") for key in useless), labels)
    refuse_typed([("data.margin_key", "no preference loss reads margins; rlhf rm does.")], labels)
    check(run, selections, labels, (*METRICS, "accuracy") if has_pairs else METRICS)


def _check_lengths(run: DpoOptions, losses: tuple[Selection, ...], labels: Labels) -> None:
    """Refuse weights by length for answers without a partner, and for losses on log-probs per token."""
    if run.preference.ld_alpha == 1.0:
        return
    for loss in losses:
        if is_single(loss) or "ref_logprobs" not in loss.needs:
            why = (
                "which learns from answers without a partner"
                if is_single(loss)
                else "which compares no whole answers with those of a reference"
            )
            raise ConfigError(
                f"{labels('preference.ld_alpha')} {run.preference.ld_alpha:g}: expected 1 with {loss.registered.name}, "
                f"{why}. Leave it out, or choose a loss on pairs with a reference.",
                code="config/length-weights",
            )


def _check_wpo(run: DpoOptions, losses: tuple[Selection, ...], labels: Labels) -> None:
    """Refuse weights of pairs for answers without a partner, and for pairs that are matched with others by rank."""
    for loss in losses if run.preference.wpo else ():
        if is_single(loss) or "matched_pairs" in loss.needs:
            raise ConfigError(
                f"{labels('preference.wpo')}: expected a loss of each pair by itself, got {loss.registered.name}, "
                "which learns from single answers or compares pairs by rank. Leave it out, or choose another loss.",
                code="config/pair-weights",
            )


def _check_loss(loss: Selection, first: Selection, labels: Labels) -> None:
    """Refuse a loss with needs that nobody meets, and one that reads other rows than the first."""
    label, name = labels(loss.slot), loss.registered.name
    if unknown := sorted(loss.needs - SUPPLIED):
        raise CapabilityError(
            f"{label} {name} needs {unknown[0]!r}, which rlhf dpo does not supply"
        )
    other, rows = (
        ("matched_pairs", "pairs") if is_single(loss) else ("mismatched_kl", "single answers")
    )
    if other in loss.needs:
        raise CapabilityError(
            f"{label} {name} needs {other!r}, which rlhf dpo supplies to losses on {rows} only"
        )
    if is_single(loss) != is_single(first):
        raise ConfigError(
            f"{label} {name}: expected a loss on the same rows as {first.registered.name}; one of them reads pairs, "
            "the other single answers. Choose another one.",
            code="config/losses-of-other-rows",
        )


DPO = OptionTree(
    command="dpo",
    purpose="Teaches a model which of two answers was preferred (DPO and related losses).",
    example="--preference.loss NAME",
    model=DpoOptions,
    selectors=(
        *SELECTORS,
        Selector("preference.loss", "rlhf_preference_losses"),
        Selector("preference.terms.use", "rlhf_preference_losses", many=True),
    ),
    shared={"preference.terms.use": PreferenceTermOptions},
    check=_check,
    cautions=cautions_at(FULL_RATE),
    models=models,
    data=data,
)
