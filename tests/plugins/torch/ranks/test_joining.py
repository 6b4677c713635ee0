"""Ranks of one machine meet where no other user comes, whoever starts them; ranks of several machines as in torch."""

import os
import secrets
import sys

import pytest
import torch

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_torch.ranks import ranks
from rlhf_weights import open_store

DEVICE = torch.device("cpu")


@pytest.fixture
def joined(monkeypatch):
    """How this process joined a process group, which is none; it is the only rank of its launcher."""
    calls = []
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(ranks.dist, "init_process_group", lambda *_, **how: calls.append(how))
    monkeypatch.setattr(ranks.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(ranks.atexit, "register", lambda function: None)
    monkeypatch.setattr(ranks, "form_all_locally", lambda: None)
    number = str(secrets.randbits(62))
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": number}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(ranks.LOCAL_SIZE, raising=False)
    return calls


@pytest.mark.parametrize(
    ("address", "local", "meets_here"),
    [
        ("127.0.0.1", None, True),
        ("10.0.0.1", None, False),
        ("10.0.0.1", "1", True),  # as torchrun says it
        ("node-3", "4", False),
    ],
)
def test_ranks_meet_on_this_machine_if_all_are_here(
    joined, monkeypatch, address, local, meets_here
):
    monkeypatch.setenv("MASTER_ADDR", address)
    if local is not None:
        monkeypatch.setenv(ranks.LOCAL_SIZE, local)

    ranks.join(DEVICE)

    assert ["store" in how for how in joined] == [meets_here]


def test_a_single_rank_forms_its_group_locally_too(joined, monkeypatch):
    """gloo listens for a group of one as well, by itself at the address of the machine's name."""
    formed = []
    monkeypatch.setattr(ranks, "form_all_locally", lambda: formed.append(len(joined)))
    for name in ranks.NEEDED:
        monkeypatch.delenv(name, raising=False)

    ranks.join(DEVICE)

    assert formed == [0]
    assert [how["world_size"] for how in joined] == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is a port")
def test_a_meeting_that_another_process_has_is_named(joined, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    number = int(os.environ["MASTER_PORT"])
    other = open_store("127.0.0.1", number, ranks.TIMEOUT)
    try:
        with pytest.raises(
            ConfigError, match=f"MASTER_PORT {number}: .*in use", check=has_code("ranks/not-met")
        ):
            ranks.join(DEVICE)
    finally:
        other.close()
    assert joined == []
