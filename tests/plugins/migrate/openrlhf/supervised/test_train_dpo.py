"""The preference loss and the reference."""

import pytest

from rlhf_plugin_migrate.table.outcome import Status


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"loss": "dpo", "nll_coef": 0.0, "dpo.beta": 0.1}),
        ("--beta 0.3 --nll_loss_coef 0.5", {"loss": "dpo", "nll_coef": 0.5, "dpo.beta": 0.3}),
        (
            "--model.label_smoothing 0.2",
            {"loss": "cdpo", "nll_coef": 0.0, "cdpo.beta": 0.1, "cdpo.label_smoothing": 0.2},
        ),
        # OpenRLHF's ipo does not smooth.
        ("--ipo --label_smoothing 0.2", {"loss": "ipo", "nll_coef": 0.0, "ipo.beta": 0.1}),
    ],
)
def test_losses(learned, flags, expected):
    settings, _ = learned("train_dpo", flags)
    section = "preference."

    found = {
        path.removeprefix(section): value
        for path, value in settings.items()
        if path.startswith(section)
    }
    assert found == expected


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ("--pretrain m --ref_pretrain m", Status.NOTHING),
        ("--pretrain m --ref_pretrain r", Status.MISSING),
    ],
)
def test_the_reference_is_the_model_at_the_start(learned, flags, status):
    _, rows = learned("train_dpo", flags)

    assert rows[" ".join(flags.split()[2:])].status is status
