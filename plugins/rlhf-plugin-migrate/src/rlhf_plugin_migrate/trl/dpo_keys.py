"""Keys of the YAML file that TRL's script for DPO reads, beside those that all scripts share."""

from __future__ import annotations

from ..table.entries import Missing, Nothing, Rule
from ..table.kinds import NUMBER, SWITCH, TEXT, choice
from .common.shared_keys import COMPUTED, REFERENCE, REFERENCE_DETAIL, Group, Line, table
from .sft_keys import EXAMPLE_GROUPS, EXAMPLES

_LOSSES = (
    "dpo",
    "cdpo",
    "robust",
    "ipo",
    "hinge",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "bco",
)
_SMOOTHED = ("cdpo", "robust", "aot", "aot_unpaired")
_BEFOREHAND = Nothing("the reference's log-probs are always computed before the first update")

# fmt: off
_LINES: tuple[Line, ...] = (
    ("learning_rate", NUMBER, 1e-6, Rule("actor.adam.lr", "actor.adam8bit.lr", "actor.sgd.lr")),
    ("loss_type", TEXT, "sigmoid", Rule("preference.loss", "preference.terms.use", "preference.ipo.length_normalized")),
    ("loss_weights", TEXT, None, Rule("preference.nll_coef", "preference.weight", "preference.terms.bco.weight")),
    ("beta", NUMBER, 0.1, Rule(*(f"preference.{loss}.beta" for loss in _LOSSES))),
    ("label_smoothing", NUMBER, 0.0,
     Rule("preference.loss", *(f"preference.{loss}.label_smoothing" for loss in _SMOOTHED))),
    ("label_smoothing_factor", NUMBER, 0.0, Nothing("TRL's trainer does not read it; its losses read label_smoothing")),
    ("f_divergence_type", choice("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"), "reverse_kl",
     Rule("preference.dpo.f_divergence")),
    ("f_alpha_divergence_coef", NUMBER, 0.5, Rule("preference.dpo.alpha")),
    ("ld_alpha", NUMBER, None, Missing("no loss weighs the tokens beyond the shorter answer", off=(None, 1.0))),
    ("use_weighting", SWITCH, False, Missing("pairs are not weighted by their probability (WPO)")),
    ("sync_ref_model", SWITCH, False, REFERENCE),
)
# fmt: on

_GROUPS: tuple[Group, ...] = (
    *EXAMPLE_GROUPS,
    (COMPUTED, "disable_dropout"),
    (_BEFOREHAND, "precompute_ref_log_probs precompute_ref_batch_size"),
    (REFERENCE_DETAIL, "ref_model_mixup_alpha ref_model_sync_steps"),
    (Nothing("it concerns a loss of loss_type that has no counterpart"), "discopop_tau"),
)

KEYS = table((*EXAMPLES, *_LINES), _GROUPS)
"""The table, by name."""
