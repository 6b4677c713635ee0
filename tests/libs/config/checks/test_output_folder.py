"""Why a command's folder cannot be written: one answer for every command."""

from rlhf_config.checks.output_folder import folder_problem


def test_a_new_folder_has_no_problem(tmp_path):
    assert folder_problem(tmp_path / "a" / "b") is None


def test_a_file_in_the_way_is_said_before_problems_of_the_command(tmp_path):
    file = tmp_path / "file"
    file.touch()

    assert folder_problem(file / "b", ["own"]) == f"expected a folder; {file} is a file"
    assert folder_problem(tmp_path, iter(["own", "other"])) == "own"
