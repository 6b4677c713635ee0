"""A YAML file of TRL for SFT becomes a configuration that ``rlhf sft`` takes."""

import pytest

from rlhf_cli.main import main
from rlhf_plugin_migrate.table.outcome import Status
from rlhf_plugin_migrate.trl.scripts import SCRIPTS
from rlhf_plugin_migrate.trl.sft import migrate

FILE = """
model_name_or_path: {model}
dataset_name: rows.jsonl
learning_rate: 2.0e-4
num_train_epochs: 1
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
gradient_checkpointing: true
assistant_only_loss: true
max_length: 2048
eval_strategy: steps
eval_steps: 100
use_peft: true
lora_r: 32
lora_alpha: 16
save_steps: 200
report_to: [mlflow, comet]
"""


@pytest.fixture
def sft():
    """Settings and rows of a text."""

    def call(text, processes=1):
        out = migrate(SCRIPTS["sft"].read(text, "x.yaml"), processes, "r.py")
        settings = {path: setting.value for path, setting in out.settings.items()}
        return settings, {row.what: row for row in out.rows()}

    return call


def test_rlhf_sft_accepts_the_result(run, workspace, tmp_path, capsys):
    text = FILE.format(model=workspace["MODEL"]).replace("mlflow, ", "")
    (tmp_path / "sft.yaml").write_text(text)

    migrated = run("sft.yaml", "--from", "trl", "--processes", "4")

    assert migrated.code == 0, migrated.report
    assert "Run it with: rlhf sft -c FILE." in (tmp_path / "run.toml").read_text()
    assert main(["sft", "-c", "run.toml", "--check"]) == 0, capsys.readouterr().err
    assert main(["sft", "-c", "run.toml", "--dry-run"]) == 0
    # 2 a device x 4 processes x 8 passes.
    assert migrated.config["train"]["batch_size"] == 64
    assert migrated.config["runtime"]["ray"] == {"ranks": {"policy": 4}}


def test_steps_are_updates_in_both(sft):
    settings, rows = sft(FILE.format(model="m") + "max_steps: 500")

    assert settings["train.steps"] == 500
    assert (settings["checkpoint.every"], settings["eval.every"]) == (200, 100)
    assert settings["log.to"] == ["mlflow"]
    assert rows["report_to: ['mlflow', 'comet']"].status is Status.MISSING
    assert rows["eval_strategy: steps"].status is Status.MISSING
    assert "eval.data" not in settings


def test_the_test_split_of_a_set_is_evaluated(sft):
    settings, rows = sft("model_name_or_path: m\ndataset_name: a/b\neval_strategy: epoch")

    assert (settings["eval.data"], settings["eval.split"]) == (["a/b"], "test")
    assert rows["eval_strategy: epoch"].status is Status.MAPPED


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("seed: 1", {"data.messages_key": "messages"}),
        ("dataset_text_field: body", {"data.text_key": "body"}),
        ("completion_only_loss: true", {"data.response_key": "completion"}),
        ("assistant_only_loss: true\ndataset_text_field: text", {"data.messages_key": "messages"}),
    ],
)
def test_columns_are_guessed_from_the_keys_with_a_warning(sft, text, columns):
    settings, _ = sft(text)

    keys = ("data.messages_key", "data.text_key", "data.response_key")
    assert {key: settings[key] for key in keys if key in settings} == columns
    warnings = migrate(SCRIPTS["sft"].read(text, "x.yaml"), 1, "").warnings
    assert [warning for warning in warnings if "TRL goes by the columns" in warning]


def test_losses_on_other_tokens_are_told(sft):
    assert (
        sft("assistant_only_loss: false")[1]["assistant_only_loss: False"].status is Status.DIFFERS
    )
    assert (
        sft("completion_only_loss: false")[1]["completion_only_loss: False"].status
        is Status.MISSING
    )
    assert sft("loss_type: dft")[0]["train.loss"] == "dft"
    assert sft("loss_type: chunked_nll")[0]["train.loss"] == "nll"
    assert sft("packing: true")[1]["packing: True"].status is Status.DIFFERS


def test_defaults_are_those_of_trl(sft):
    settings, _ = sft("seed: 1")

    assert settings["actor.adam.lr"] == 2e-5
    assert settings["data.max_length"] == 1024
    assert settings["train.max_tokens_per_micro_batch"] == 8 * 1024
    assert settings["train.epochs"] == 3


def test_no_limit_of_the_length_is_told(sft):
    settings, rows = sft("max_length: null")

    assert "data.on_too_long" not in settings
    assert rows["max_length: None"].status is Status.DIFFERS


def test_noise_and_smoothed_labels_are_set(sft):
    settings, rows = sft(
        FILE.format(model="m") + "neftune_noise_alpha: 5\nlabel_smoothing_factor: 0.1"
    )

    assert settings["train.neftune_alpha"] == 5
    assert settings["train.label_smoothing"] == 0.1
    assert rows["label_smoothing_factor: 0.1"].status is Status.MAPPED
    plain, rows = sft(FILE.format(model="m") + "loss_type: dft\nlabel_smoothing_factor: 0.1")
    assert "train.label_smoothing" not in plain
    assert rows["label_smoothing_factor: 0.1"].text == "TRL smooths no labels with dft"


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ("model_name_or_path: a/b\nmodel_revision: v2", "a/b@v2"),
        ("model_name_or_path: a/b\nmodel_revision: main", "a/b"),
        ("model_name_or_path: ./b\nmodel_revision: v2", "./b"),  # TRL reads the folder as it is
        ("model_name_or_path: a/b", "a/b"),
    ],
)
def test_a_revision_is_part_of_the_model_s_name(sft, keys, path):
    settings, rows = sft(keys)

    assert settings["model.path"] == path
    assert not [
        row
        for row in rows.values()
        if "model_revision" in row.what and row.status is Status.MISSING
    ]
