import tempfile

from rlhf_core.storage import TEMPORARY_VARIABLE, temporary_folder


def test_the_folder_of_the_runtime_comes_before_the_systems(monkeypatch, tmp_path):
    monkeypatch.delenv(TEMPORARY_VARIABLE, raising=False)
    assert temporary_folder() == tempfile.gettempdir()

    monkeypatch.setenv(TEMPORARY_VARIABLE, str(tmp_path))
    assert temporary_folder() == str(tmp_path)
