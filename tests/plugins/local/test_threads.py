"""The number of threads where no option says it."""

import pytest

from rlhf_core.contracts import RoleSpec
from rlhf_plugin_local.threads import TINY_BYTES, default_threads


@pytest.fixture(autouse=True)
def three_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 4, 5})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def role(folder, *sizes, files=("config.json",)):
    """A role whose model's folder has weight files of these sizes."""
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    for index, size in enumerate(sizes):
        with (folder / f"model-{index}.safetensors").open("wb") as file:
            file.truncate(size)
    return RoleSpec(role="policy", model_path=str(folder))


def test_a_tiny_model_has_one_thread_and_a_larger_one_all_cores(tmp_path):
    half = TINY_BYTES // 2

    assert default_threads([role(tmp_path / "tiny", half, half)]) == 1
    assert default_threads([role(tmp_path / "larger", half, half + 1)]) == 3


def test_one_role_that_is_not_tiny_is_enough(tmp_path):
    tiny, large = role(tmp_path / "policy", 1000), role(tmp_path / "teacher", TINY_BYTES + 1)

    assert default_threads([tiny, tiny]) == 1
    assert default_threads([tiny, large]) == 3


@pytest.mark.parametrize(
    "files", [(), ("adapter_config.json",), ("config.json", "adapter_config.json")]
)
def test_the_small_file_of_an_adapter_says_nothing_about_its_base(tmp_path, files):
    assert default_threads([role(tmp_path / "adapter", 1000, files=files)]) == 3


def test_a_hub_name_and_a_folder_without_weights_say_nothing(tmp_path):
    assert default_threads([RoleSpec(role="policy", model_path="Qwen/Qwen2.5-0.5B")]) == 3
    assert default_threads([role(tmp_path / "empty")]) == 3


def test_the_environment_variable_comes_first(tmp_path, monkeypatch):
    tiny = role(tmp_path / "tiny", 1000)
    for said, threads in (("2", 2), ("", 1), ("0", 1), ("two", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert default_threads([tiny]) == threads
