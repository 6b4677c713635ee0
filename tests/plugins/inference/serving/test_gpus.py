"""GPUs of each engine, as its processes see them."""

from __future__ import annotations

import os

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_inference.serving.gpus import VARIABLE, only, shares, visible_gpus
from rlhf_testing.errors import has_code


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0,1", ["0", "1"]), ("GPU-5f, GPU-a1", ["GPU-5f", "GPU-a1"]), ("", []), ("-1", [])],
)
def test_the_gpus_are_those_that_the_variable_names(monkeypatch, value, expected):
    monkeypatch.setenv(VARIABLE, value)

    assert visible_gpus() == expected


@pytest.mark.parametrize(
    ("gpus", "num_engines", "expected"),
    [
        ("0123", 2, ["01", "23"]),
        ("0123", 3, ["0", "1", "2"]),
        ("56", 1, ["56"]),
        ("", 2, ["", ""]),
    ],
)
def test_each_engine_gets_as_many_as_another(gpus, num_engines, expected):
    assert ["".join(share) for share in shares(list(gpus), num_engines)] == expected


def test_fewer_gpus_than_engines_are_refused():
    with pytest.raises(ConfigError, match=r"--engines 3.*sees 2", check=has_code("gpu/too-few")):
        shares(["0", "1"], 3)


@pytest.mark.parametrize("before", [None, "4,5,6"])
def test_processes_that_start_meanwhile_see_their_share(monkeypatch, before):
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)

    with only(["5", "6"]):
        assert os.environ[VARIABLE] == "5,6"
    assert os.environ.get(VARIABLE) == before
    with only([]):
        assert os.environ.get(VARIABLE) == before
