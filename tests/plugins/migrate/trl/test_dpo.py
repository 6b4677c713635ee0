"""A YAML file of TRL for DPO becomes a configuration that ``rlhf dpo`` takes."""

import pytest

from rlhf_cli.main import main
from rlhf_plugin_migrate.table.outcome import Status
from rlhf_plugin_migrate.trl.dpo import migrate
from rlhf_plugin_migrate.trl.scripts import SCRIPTS


@pytest.fixture
def dpo():
    """Settings of the loss, and the rows of a text."""

    def call(text):
        out = migrate(SCRIPTS["dpo"].read(text, "x.yaml"), 1, "r.py")
        section = "preference."
        settings = {
            path.removeprefix(section): setting.value
            for path, setting in out.settings.items()
            if path.startswith(section)
        }
        return settings, {row.what: row for row in out.rows()}

    return call


def test_rlhf_dpo_accepts_the_result(run, workspace, tmp_path, capsys):
    (tmp_path / "dpo.yaml").write_text(
        f"model_name_or_path: {workspace['MODEL']}\ndataset_name: pairs.jsonl\nlearning_rate: 5.0e-7\n"
        "loss_type: ipo\nbeta: 0.2\nper_device_train_batch_size: 4\nprecompute_ref_log_probs: true\n"
    )

    migrated = run("dpo.yaml", "--from", "trl")

    assert migrated.code == 0, migrated.report
    assert main(["dpo", "-c", "run.toml", "--check"]) == 0, capsys.readouterr().err
    assert migrated.config["preference"] == {
        "loss": "ipo",
        "ipo": {"beta": 0.2, "length_normalized": True},
    }
    assert migrated.config["train"]["max_tokens_per_micro_batch"] == 4 * 2 * 1024


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1", {"loss": "dpo", "dpo.beta": 0.1}),
        ("label_smoothing: 0.1", {"loss": "cdpo", "cdpo.beta": 0.1, "cdpo.label_smoothing": 0.1}),
        (
            "loss_type: robust\nlabel_smoothing: 0.2",
            {"loss": "robust", "robust.beta": 0.1, "robust.label_smoothing": 0.2},
        ),
        ("loss_type: [hinge]\nbeta: 0.5", {"loss": "hinge", "hinge.beta": 0.5}),
        (
            "loss_type: aot\nlabel_smoothing: 0.1",
            {"loss": "aot", "aot.beta": 0.1, "aot.label_smoothing": 0.1},
        ),
        ("loss_type: apo_zero", {"loss": "apo_zero", "apo_zero.beta": 0.1}),
        ("loss_type: apo_down", {"loss": "apo_down", "apo_down.beta": 0.1}),
        ("loss_type: bco_pair", {"loss": "bco", "bco.beta": 0.1}),
        (
            "ld_alpha: 0.5\nuse_weighting: true",
            {"loss": "dpo", "dpo.beta": 0.1, "ld_alpha": 0.5, "wpo": True},
        ),
        (
            "f_divergence_type: js_divergence",
            {"loss": "dpo", "dpo.beta": 0.1, "dpo.f_divergence": "js_divergence"},
        ),
        (
            "f_divergence_type: alpha_divergence\nf_alpha_divergence_coef: 0.75",
            {
                "loss": "dpo",
                "dpo.beta": 0.1,
                "dpo.f_divergence": "alpha_divergence",
                "dpo.alpha": 0.25,
            },
        ),
        (
            "loss_type: [sigmoid, sft]\nloss_weights: [2.0, 1.0]",
            {"loss": "dpo", "dpo.beta": 0.1, "nll_coef": 0.5},
        ),
        (
            "loss_type: [sigmoid, bco_pair, sft]\nloss_weights: [0.8, 0.2, 1.0]",
            {
                "loss": "dpo",
                "weight": 0.8,
                "dpo.beta": 0.1,
                "terms.use": ["bco"],
                "terms.bco.weight": 0.2,
                "terms.bco.beta": 0.1,
                "nll_coef": 1.0,
            },
        ),
        ("loss_type: [sft, sigmoid]", {"loss": "dpo", "dpo.beta": 0.1, "nll_coef": 1.0}),
    ],
)
def test_losses(dpo, text, expected):
    assert dpo(text)[0] == expected


@pytest.mark.parametrize(("loss", "is_ignored"), [("sigmoid", True), ("robust", False)])
def test_smoothing_that_trl_ignores_is_reported_as_a_difference(dpo, loss, is_ignored):
    _, rows = dpo(f"loss_type: {loss}\nlabel_smoothing: 0.1")

    (row,) = (row for name, row in rows.items() if "label_smoothing" in name)
    assert (row.status is Status.DIFFERS) == is_ignored


def test_the_smoothing_of_supervised_losses_which_trl_does_not_read_here_is_dropped(dpo):
    """TRL's trainers for DPO compute their loss without the label smoother of Transformers."""
    plain, _ = dpo("beta: 0.1")
    smoothed, rows = dpo("beta: 0.1\nlabel_smoothing_factor: 0.1")

    assert smoothed == plain
    assert rows["label_smoothing_factor: 0.1"].status is Status.NOTHING


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("loss_type: ipo\nf_divergence_type: forward_kl", "f_divergence_type"),
        ("f_divergence_type: alpha_divergence\nf_alpha_divergence_coef: 1.5", "f_divergence_type"),
    ],
)
def test_a_divergence_without_a_counterpart_is_missing(dpo, text, name):
    settings, rows = dpo(text)

    assert not any("f_divergence" in path for path in settings)
    assert [name in row.what for row in rows.values() if row.status is Status.MISSING] == [True]


@pytest.mark.parametrize("text", ["loss_type: nca_pair", "loss_type: [sigmoid, exo_pair]"])
def test_a_loss_without_a_counterpart_is_missing(dpo, text):
    settings, rows = dpo(text)

    assert settings["loss"] == "dpo"
    assert {row.status for row in rows.values()} == {Status.MISSING}


def test_rlhf_dpo_accepts_a_reference_that_follows(run, workspace, tmp_path, capsys):
    (tmp_path / "dpo.yaml").write_text(
        f"model_name_or_path: {workspace['MODEL']}\ndataset_name: pairs.jsonl\nlearning_rate: 5.0e-7\n"
        "loss_type: sigmoid\nprecompute_ref_log_probs: false\n"
        "sync_ref_model: true\nref_model_sync_steps: 100\nref_model_mixup_alpha: 0.5\n"
    )

    migrated = run("dpo.yaml", "--from", "trl")

    assert migrated.code == 0, migrated.report
    assert main(["dpo", "-c", "run.toml", "--check"]) == 0, capsys.readouterr().err
    assert migrated.config["ref"] == {"sync_every": 100, "sync_alpha": 0.5}
