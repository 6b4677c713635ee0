"""Keys of the YAML file that TRL's script for SFT reads, beside those that all scripts share."""

from __future__ import annotations

from ..table.entries import Missing, Nothing, Rule, To
from ..table.kinds import NUMBER, SWITCH, TEXT, WHOLE, choice
from .common.shared_keys import COMPUTED, Group, Line, table

SIZES = Rule("train.batch_size", "train.max_tokens_per_micro_batch")
EVAL = Rule("eval.data", "eval.split", "eval.every", "eval.at_start")
CHAT_TEMPLATE = Missing(
    "the chat template is the tokenizer's: put yours into a copy of its folder, and set model.tokenizer", off=(None,)
)  # fmt: skip
_PREPARED = Nothing("how rows are prepared changes no result")

# fmt: off
EXAMPLES: tuple[Line, ...] = (
    ("per_device_train_batch_size", WHOLE, 8, SIZES),
    ("gradient_accumulation_steps", WHOLE, 1, SIZES),
    ("max_length", WHOLE, 1024, Rule("data.max_length", "data.on_too_long")),
    ("truncation_mode", TEXT, "keep_start", Rule("data.on_too_long")),
    ("eval_strategy", TEXT, "no", EVAL),
    ("eval_steps", NUMBER, None, EVAL),
    ("eval_on_start", SWITCH, False, EVAL),
    ("dataset_test_split", TEXT, "test", EVAL),
    ("test_split_size", NUMBER, None,
     Missing("name held-out rows in eval.data, or hold a share of the rows out with eval.fraction", off=(None,))),
    ("activation_offloading", SWITCH, False,
     Missing("activations stay on the GPU; gradient checkpointing keeps fewer of them")),
)
"""Keys that the scripts for SFT and DPO share."""

_LINES: tuple[Line, ...] = (
    ("learning_rate", NUMBER, 2e-5, Rule("actor.adam.lr", "actor.adam8bit.lr", "actor.sgd.lr")),
    ("loss_type", choice("nll", "dft", "chunked_nll"), "nll",
     To("train.loss", lambda loss: "dft" if loss == "dft" else "nll", if_given=True)),
    ("neftune_noise_alpha", NUMBER, None, To("train.neftune_alpha", lambda alpha: alpha or 0.0, if_given=True)),
    ("label_smoothing_factor", NUMBER, 0.0, Rule("train.label_smoothing")),
    ("dataset_text_field", TEXT, "text", Rule("data.text_key")),
    ("completion_only_loss", SWITCH, None, Rule("data.response_key")),
    ("assistant_only_loss", SWITCH, False, Rule("data.messages_key")),
    ("packing", SWITCH, False, Rule()),
    ("chat_template_path", TEXT, None, CHAT_TEMPLATE),
    ("eos_token", TEXT, None, Missing("the end of a sequence is the tokenizer's", off=(None,))),
    ("dataset_kwargs", TEXT, None, Missing("rows are prepared here", off=(None,))),
)
# fmt: on

EXAMPLE_GROUPS: tuple[Group, ...] = (
    (COMPUTED, "padding_free pad_to_multiple_of"),
    (_PREPARED, "dataset_num_proc pad_token"),
)
"""Keys with one fate that the scripts for SFT and DPO share."""

_GROUPS: tuple[Group, ...] = (
    *EXAMPLE_GROUPS,
    (COMPUTED, "packing_strategy eval_packing"),
    (Nothing("rows come in a new order each epoch, in TRL too"), "shuffle_dataset"),
)

KEYS = table((*EXAMPLES, *_LINES), _GROUPS)
"""The table, by name."""
