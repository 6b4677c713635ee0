"""Corrections of verl: weights, dropped sequences, and the veto of a single token."""

import pytest

from rlhf_plugin_migrate.shell.script import ShellCommand
from rlhf_plugin_migrate.verl import programs

PREFIX = "algorithm.rollout_correction."
OURS = "algo.correction."


def migrated(*words):
    """Return the settings of corrections by what follows their prefix, and rows by what was written."""
    command = ("python3", "-m", "verl.trainer.main_ppo", *(PREFIX + word for word in words))
    launch = programs.verl_launch_of(ShellCommand(command, line=1))
    outcome = programs.launched(launch, None, "reward.py")
    settings = {
        path.removeprefix(OURS): setting.value
        for path, setting in outcome.settings.items()
        if path.startswith(OURS)
    }
    return settings, {row.what: row for row in outcome.rows()}


VETO = "rollout_token_veto_threshold=1e-4"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {"mode": "mask", "high": 1e6, "weight": "off"}),
        (("rollout_is=token",), {"level": "token", "mode": "truncate", "low": "none", "high": 2.0}),
        (
            ("rollout_rs=seq_mean_k1", "rollout_rs_threshold=0.5_2.0"),
            {
                "level": "geometric",
                "mode": "mask",
                "gate": "ratio",
                "low": 0.5,
                "high": 2.0,
                "weight": "off",
            },
        ),
    ],
)
def test_a_veto_goes_with_weights_and_drops_or_stands_alone(words, options):
    settings, rows = migrated(*words, VETO)

    expected = {f"importance.{name}": value for name, value in options.items()}
    assert settings == {"kind": "importance", "importance.veto": 1e-4, **expected}
    assert "veto" in rows[PREFIX + VETO].text


def test_without_a_veto_token_weights_are_tis():
    settings, _ = migrated("rollout_is=token")

    assert settings == {"kind": "tis", "tis.high": 2.0}


def test_with_bypass_mode_nothing_is_dropped_and_the_veto_is_told():
    settings, rows = migrated("bypass_mode=true", VETO)

    assert settings == {}
    assert "nothing is dropped with bypass_mode" in rows[PREFIX + VETO].text
