import errno
import os
import re
from types import SimpleNamespace

import pytest

from rlhf_core import ConfigError, StorageError
from rlhf_plugin_inference.worklist import configuration
from rlhf_plugin_inference.worklist.configuration import NAME, GoingOn, record_config
from rlhf_testing.errors import has_code

RULES = GoingOn(free=re.compile("free"), contents="results", way_out="start over with --overwrite")


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Record options in a folder."""

    def write(resolved, path):
        path.write_text("".join(f"{key} = {value}\n" for key, value in resolved.tree.items()))

    monkeypatch.setattr(configuration, "write_toml", write)

    def record(*, is_begun, **tree):
        record_config(
            SimpleNamespace(tree=tree, cautions=("look out",)), tmp_path, RULES, is_begun=is_begun
        )
        return tmp_path / NAME

    return record


def test_a_free_option_may_change(recorded):
    recorded(is_begun=False, free=1, bound=2)

    assert "free = 3" in recorded(is_begun=True, free=3, bound=2).read_text()


def test_warnings_about_the_options_are_logged(recorded, caplog):
    recorded(is_begun=False, free=1)

    assert caplog.messages == ["look out"]


def test_another_one_is_refused_and_the_record_stays(recorded):
    file = recorded(is_begun=False, bound=2)

    with pytest.raises(
        ConfigError, match=r"bound is 3.*with 2", check=has_code("resume/option-changed")
    ):
        recorded(is_begun=True, bound=3)

    assert file.read_text() == "bound = 2\n"


def test_results_that_nobody_knows_the_options_of_are_not_gone_on_with(recorded, tmp_path):
    recorded(is_begun=False, bound=2).unlink()

    with pytest.raises(
        ConfigError, match=r"config\.toml.*--overwrite", check=has_code("resume/no-configuration")
    ):
        recorded(is_begun=True, bound=3)

    assert list(tmp_path.iterdir()) == []


def test_a_record_without_room_is_named_and_the_old_one_stays(recorded, monkeypatch, tmp_path):
    file = recorded(is_begun=False, bound=2)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError, match=r"config\.toml.*No space left", check=has_code("output/not-written")
    ):
        recorded(is_begun=True, bound=2, free=3)

    assert file.read_text() == "bound = 2\n"
    assert list(tmp_path.iterdir()) == [file]
