"""Errors beside finished results keep their class and their code."""

import pytest

from rlhf_core import RewardError
from rlhf_plugin_inference.worklist.kept_results import results_are_kept
from rlhf_testing.errors import has_code


class Unfair(RewardError, code="reward/unfair"):
    """A user's error, which takes its message alone."""

    def __init__(self, message):
        super().__init__(message)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unfair("no"), "reward/unfair"),
        (RewardError("no", code="reward/not-finite"), "reward/not-finite"),
    ],
)
def test_an_error_beside_results_keeps_its_class_and_its_code(tmp_path, error, code):
    path = tmp_path / "scores.jsonl"

    with (
        pytest.raises(
            type(error), match=f"^no\n  The scores .* are in {path}; go on", check=has_code(code)
        ),
        results_are_kept(path, "scores", "go on"),
    ):
        raise error
