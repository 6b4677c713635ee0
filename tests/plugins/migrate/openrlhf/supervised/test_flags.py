"""Each flag of the programs that learn from examples, in the company of others."""

import pytest

from rlhf_plugin_migrate.openrlhf.common.command_line import FLAGS
from rlhf_plugin_migrate.openrlhf.supervised import train_dpo, train_rm, train_sft
from rlhf_plugin_migrate.table.entries import Rule
from rlhf_plugin_migrate.table.kinds import NUMBER, PAIR, SHARES, SWITCH, TEXT, TEXTS, WHOLE

WORDS = {
    SWITCH: "",
    SHARES: "0.5,0.5",
    WHOLE: "2",
    NUMBER: "0.5",
    TEXT: "text",
    PAIR: "0.1 0.9",
    TEXTS: "q k",
}
PROGRAMS = {
    "sft": (train_sft.migrate, FLAGS["train_sft"]),
    "rm": (train_rm.migrate, FLAGS["train_rm"]),
    "dpo": (train_dpo.migrate, FLAGS["train_dpo"]),
}
COMMON = "--model.model_name_or_path m --data.dataset d"
BASES = {
    "sft": (
        "",
        "--data.output_key o --data.apply_chat_template",
        "--data.apply_chat_template --data.multiturn --ds.lora.rank 4 --eval.dataset e",
        "--model.pretrain_mode_enable --optim muon --logger.wandb.key k",
    ),
    "rm": (
        "--data.apply_chat_template --model.loss_type logexp",
        "--data.prompt_key p --eval.dataset a,b --train.max_epochs 2",
    ),
    "dpo": (
        "--data.apply_chat_template --model.ipo_enable",
        "--data.prompt_key p --model.label_smoothing 0.1 --ds.lora.rank 4 --ds.load_in_4bit",
    ),
}


@pytest.mark.parametrize(
    ("program", "base"), [(name, base) for name, bases in BASES.items() for base in bases]
)
def test_every_flag_gets_a_row_and_sets_no_undeclared_option(program, base):
    migrate, table = PROGRAMS[program]
    for entry in table.values():
        value = WORDS.get(entry.kind, entry.kind.name.removeprefix("one of ").partition(",")[0])
        words = f"{COMMON} {base} --{entry.name} {value}".split()
        out = migrate(words, 2)
        rows = list(out.rows())

        assert len(rows) == sum(word.startswith("--") for word in words), entry.name
        assert rows[-1].text, entry.name
        if isinstance(entry.fate, Rule):
            by_it = {path for path, found in out.settings.items() if entry.name in found.sources}
            assert by_it <= set(entry.fate.options), entry.name


@pytest.mark.parametrize(
    ("program", "lr", "length", "epochs", "micro_batch"),
    [
        ("sft", 5e-6, 2048, 2, 8 * 2048),
        ("rm", 9e-6, 512, 1, 2 * 512),
        ("dpo", 1e-5, 512, 1, 16 * 512),
    ],
)
def test_each_program_has_its_own_defaults(program, lr, length, epochs, micro_batch):
    settings = PROGRAMS[program][0]([], 1).settings

    assert settings["actor.adam.lr"].value == lr
    assert settings["data.max_length"].value == length
    assert settings["train.epochs"].value == epochs
    # One update of RM and DPO has pairs of sequences.
    assert settings["train.max_tokens_per_micro_batch"].value == micro_batch
    assert settings["train.batch_size"].value == 128
    assert settings["data.max_samples"].value == 1_000_000
