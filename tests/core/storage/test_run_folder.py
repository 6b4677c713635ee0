"""One run per folder, and one process per run."""

import os
import socket

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.storage.run_folder import RunFolder, claim
from rlhf_testing.errors import has_code


def test_a_used_folder_is_refused_without_resume(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with claim(folder, resume=False):
        folder.metrics.write_text("")

    with pytest.raises(ConfigError, match="--resume auto", check=has_code("output/run-exists")):
        claim(folder, resume=False)
    claim(folder, resume=True).close()


def test_two_processes_do_not_share_a_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")

    with claim(folder, resume=False), pytest.raises(ConfigError, check=has_code("output/in-use")):
        claim(folder, resume=True)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(
        ConfigError, match="cannot be created", check=has_code("output/cannot-create")
    ):
        claim(RunFolder(tmp_path / "file" / "run"), resume=False)


@pytest.mark.parametrize("name", [300 * "x", "nul\0byte"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path, name):
    with pytest.raises(
        ConfigError, match="cannot be looked up", check=has_code("output/cannot-create")
    ):
        claim(RunFolder(tmp_path / name), resume=False)


def listen_at(path):
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # the address of a socket is short
        listener.bind(path.name)


OTHER_KINDS = {
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a socket": listen_at,
    "a device": lambda path: path.symlink_to("/dev/null"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a name that cannot be looked up": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "samples.jsonl",
        "eval_samples.jsonl",
        "ledger.jsonl",
        "run.log",
        "plugins.json",
        "config.toml",
        ".lock",
    ],
)
def test_what_is_no_file_in_a_files_place_is_refused(tmp_path, monkeypatch, name, kind):
    """Above all at once: opening a FIFO would wait for ever."""
    monkeypatch.chdir(tmp_path)
    OTHER_KINDS[kind](tmp_path / name)

    with pytest.raises(
        ConfigError,
        match=rf"expected a file; .*{name} is {kind}",
        check=has_code("output/cannot-create"),
    ):
        claim(RunFolder(tmp_path), resume=True)


@pytest.mark.parametrize("name", ["checkpoints", "model", "model_ema"])
def test_a_file_in_a_folders_place_is_refused(tmp_path, name):
    (tmp_path / name).write_text("")

    with pytest.raises(
        ConfigError,
        match=rf"expected a folder; .*{name} is a file",
        check=has_code("output/cannot-create"),
    ):
        claim(RunFolder(tmp_path), resume=True)
