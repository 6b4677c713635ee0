"""Flags of ``train_sft``, ``train_rm`` and ``train_dpo`` in OpenRLHF 0.11.2, with the flat names of 0.10.1.

``common/flags.py`` says what a line has, and has the lines that ``train_ppo_ray`` shares.
"""

from __future__ import annotations

from ...table.entries import BALANCING, Missing, Nothing, Rule, To
from ...table.kinds import NUMBER, SHARES, SWITCH, TEXT, WHOLE
from ..common import reasons as why
from ..common.flags import DEEPSPEED, FILES, LIGER, Line, adapted, logged, table, trained

_TEMPLATE = "User: {}\nAssistant: "
_CHAT_TEMPLATE = Missing(
    "the chat template is the tokenizer's: put yours into a copy of its folder, and set model.tokenizer"
)
_HELD_OUT = Rule("eval.data", "eval.every", "eval.at_start")
_HEAD = Missing("the head is called score, where Transformers looks for it", off=("score",))
_LEFT_OVER = "the last update of an epoch takes the rows that are left; OpenRLHF keeps them for the next epoch"
_SMOOTHED = ("preference.loss", "preference.cdpo.label_smoothing")
_BETA = tuple(f"preference.{loss}.beta" for loss in ("dpo", "cdpo", "ipo"))

# fmt: off
_SHARED: tuple[Line, ...] = (
    ("model.model_name_or_path", TEXT, None, To("model.path"), "pretrain"),
    ("model.gradient_checkpointing_enable", SWITCH, False, To("backend.deepspeed.gradient_checkpointing"),
     "gradient_checkpointing"),
    ("model.gradient_checkpointing_reentrant", SWITCH, False, why.REENTRANT, "gradient_checkpointing_use_reentrant"),
    ("model.aux_loss_coef", NUMBER, 0.0, BALANCING, "aux_loss_coef"),
    ("data.dataset", TEXT, None, Rule("data.train"), "dataset"),
    ("data.dataset_probs", SHARES, None, Rule("data.probabilities"), "dataset_probs"),
    ("data.dataset_split", TEXT, "train", To("data.split"), "dataset_split"),
    ("data.max_samples", NUMBER, 1e6, Rule("data.max_samples"), "max_samples"),
    ("data.apply_chat_template", SWITCH, False, Rule("data.chat"), "apply_chat_template"),
    ("data.tokenizer_chat_template", TEXT, None, _CHAT_TEMPLATE, "tokenizer_chat_template"),
    ("eval.dataset", TEXT, None, _HELD_OUT, "eval_dataset"),
    ("eval.steps", WHOLE, -1, _HELD_OUT, "eval_steps"),
    ("train.batch_size", WHOLE, 128, To("train.batch_size", differs=_LEFT_OVER), "train_batch_size"),
)

_SFT: tuple[Line, ...] = (
    ("model.pretrain_mode_enable", SWITCH, False, Rule("data.text_key"), "pretrain_mode"),
    ("data.input_key", TEXT, "input",
     Rule("data.prompt_key", "data.messages_key", "data.text_key", "data.template"), "input_key"),
    ("data.output_key", TEXT, None, Rule("data.response_key"), "output_key"),
    ("data.input_template", TEXT, _TEMPLATE, Rule("data.template"), "input_template"),
    ("data.multiturn", SWITCH, False, Rule("data.learn"), "multiturn"),
    # Up to 0.10.1.
    ("train_split", TEXT, "train", Nothing("OpenRLHF reads it nowhere")),
)

_PAIRS: tuple[Line, ...] = (
    ("data.prompt_key", TEXT, None, Rule("data.prompt_key", "data.template"), "prompt_key"),
    ("data.chosen_key", TEXT, "chosen", To("data.chosen_key"), "chosen_key"),
    ("data.rejected_key", TEXT, "rejected", To("data.rejected_key"), "rejected_key"),
    ("data.input_template", TEXT, None, Rule("data.template"), "input_template"),
)

_RM: tuple[Line, ...] = (
    ("model.loss_type", TEXT, "sigmoid", Rule("ranking.loss"), "loss"),
    ("model.margin_loss_enable", SWITCH, False, Rule("data.margin_key"), "margin_loss"),
    ("model.compute_fp32_loss_enable", SWITCH, False, Nothing("scores are float32 in the loss"),
     "compute_fp32_loss"),
    ("ds.value_head_prefix", TEXT, "score", _HEAD, "value_head_prefix"),
)

_DPO: tuple[Line, ...] = (
    ("model.beta", NUMBER, 0.1, Rule(*_BETA), "beta"),
    ("model.ipo_enable", SWITCH, False, Rule("preference.loss"), "ipo"),
    ("model.label_smoothing", NUMBER, 0.0, Rule(*_SMOOTHED), "label_smoothing"),
    ("model.nll_loss_coef", NUMBER, 0.0, To("preference.nll_coef"), "nll_loss_coef"),
    ("ref.model_name_or_path", TEXT, None, Rule(), "ref_pretrain"),
    ("ref.offload", SWITCH, False, Nothing(
        "the reference's log-probs are computed before the first update; no second model is in memory"),
     "ref_offload"),
)


def _sized(max_len: int, epochs: int, micro_batch: int, eval_split: str) -> tuple[Line, ...]:
    """Return the flags of which each program has its own defaults."""
    return (
        ("data.max_len", WHOLE, max_len,
         Rule("data.max_length", "data.on_too_long", "data.on_bad_row", "train.max_tokens_per_micro_batch"), "max_len"),
        ("train.max_epochs", WHOLE, epochs, To("train.epochs"), "max_epochs"),
        ("train.micro_batch_size", WHOLE, micro_batch, Rule("train.max_tokens_per_micro_batch"),
         "micro_train_batch_size"),
        ("eval.split", TEXT, eval_split, Rule("eval.split"), "eval_split"),
    )


def _program(name: str, lr: float, *own: tuple[Line, ...]) -> tuple[Line, ...]:
    parts = (
        _SHARED, DEEPSPEED, adapted("actor"), trained("actor", "", lr, "learning_rate"), FILES,
        logged(f"openrlhf_train_{name}"), *own,
    )
    return tuple(line for part in parts for line in part)


SFT = table(_program("sft", 5e-6, (LIGER,), _SFT, _sized(2048, 2, 8, "train")))
"""The table of ``train_sft``, by the names of 0.11.2."""
RM = table(_program("rm", 9e-6, _PAIRS, _RM, _sized(512, 1, 1, "train")))
"""The table of ``train_rm``."""
DPO = table(_program("dpo", 1e-5, (LIGER,), _PAIRS, _DPO, _sized(512, 1, 8, "test")))
"""The table of ``train_dpo``."""
# fmt: on
