"""One run per folder, and one process per run."""

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.loop.run_folder import RunFolder, claim


def test_a_used_folder_is_refused_without_resume(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with claim(folder, resume=False):
        folder.metrics.write_text("")

    with pytest.raises(ConfigError, match="--resume auto"):
        claim(folder, resume=False)
    claim(folder, resume=True).close()


def test_two_processes_do_not_share_a_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")

    with claim(folder, resume=False), pytest.raises(ConfigError, match="another process"):
        claim(folder, resume=True)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="cannot be created"):
        claim(RunFolder(tmp_path / "file" / "run"), resume=False)
