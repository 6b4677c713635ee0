"""The ranking loss and its margin."""

import pytest

from rlhf_plugin_migrate.table.outcome import Status


@pytest.mark.parametrize(
    ("flags", "loss", "margin"),
    [
        ("", "sigmoid", None),
        ("--model.loss_type sigmoid --model.margin_loss_enable", "sigmoid", "margin"),
        # OpenRLHF takes any other name for log-exp, which reads no margin.
        ("--model.loss_type logexp --model.margin_loss_enable", "log_exp", None),
        ("--loss logexp --margin_loss", "log_exp", None),
    ],
)
def test_losses(learned, flags, loss, margin):
    settings, _ = learned("train_rm", flags)

    assert settings["ranking.loss"] == loss
    assert settings.get("data.margin_key") == margin


def test_the_head_has_the_name_of_transformers(learned):
    _, rows = learned("train_rm", "--ds.value_head_prefix score")
    assert rows["--ds.value_head_prefix score"].status is Status.NOTHING
    _, rows = learned("train_rm", "--ds.value_head_prefix value")
    assert rows["--ds.value_head_prefix value"].status is Status.MISSING
