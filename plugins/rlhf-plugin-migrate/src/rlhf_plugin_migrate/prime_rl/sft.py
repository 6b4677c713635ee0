"""Migration of prime-rl's ``sft`` to ``rlhf sft``."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .training import num_train_gpus, set_training, train_gpu_keys


def migrate(source: SourceOptions) -> Outcome:
    """Return the configuration that the keys mean."""
    out = Outcome(source, command="sft")
    out.apply_plain_entries()
    name, splits, subsets = "data.name", "data.splits", "data.subsets"
    out.set("data.train", [source.text(name)], name)
    if isinstance(found := source.value(splits), list) and found:
        out.set("data.split", str(found[0]), splits)
        if len(found) > 1:
            out.missing(splits, "one split is read: name a set for each in data.train")
    if source.value(subsets):
        out.missing(subsets, "name each subset in data.train (docs/data.md)")
    masks = {role: f"data.loss_mask.{role}" for role in ("assistant", "user", "tool", "system")}
    learned = [role for role, key in masks.items() if source.flag(key)]
    if learned and learned != ["assistant"]:
        out.set("data.roles", learned, *masks.values())
        others = [masks[role] for role in learned if role != "assistant"]
        out.differs(others, "the mark before a message, such as <|im_start|>user, is not learned")
    elif learned:
        out.nothing(masks.values(), "the assistant's turns are learned")
    else:
        out.missing(masks.values(), "nothing would be learned")
    length, rows = source.whole("data.seq_len"), "data.micro_batch_size"
    out.set("train.max_tokens_per_micro_batch", length * source.whole(rows), rows, "data.seq_len")
    if source.given("val.data.name"):
        out.copy("eval.every", "val.interval")
    if (number := num_train_gpus(source)) > 1:
        out.set("runtime.name", "ray", *train_gpu_keys(source))
        out.set("runtime.ray.ranks.policy", number, *train_gpu_keys(source))
    set_training(source, out, "")
    out.note_unused()
    return out
