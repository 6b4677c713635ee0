"""``rlhf quickstart``: a folder with all that a run needs, equal to the example, and a run that goes on."""

import json
import tomllib
from pathlib import Path

import pytest

from rlhf_cli.main import main
from rlhf_cli.quickstart import files

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "reverse_digits"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "quickstart"
    files.write(folder)
    return folder


def test_the_reward_is_that_of_the_example(written):
    assert (written / "reward.py").read_text() == (EXAMPLE / "reward.py").read_text()


def test_the_options_are_those_of_the_example_for_fewer_steps_at_a_higher_rate(written):
    ours = tomllib.loads((written / "run.toml").read_text())
    text = (EXAMPLE / "run.toml").read_text()
    text = text.replace("runs/reverse_digits", f"{written}/run")
    text = text.replace("examples/reverse_digits/data", str(written))
    theirs = tomllib.loads(text.replace("examples/reverse_digits", str(written)))

    changed = {"train": {"steps"}, "eval": {"every"}, "actor": {"adam"}}
    for section, names in changed.items():
        for name in names:
            assert ours[section].pop(name) != theirs[section].pop(name)
    del theirs["critic"]
    assert ours == theirs


def test_held_out_strings_are_not_among_the_training_rows(written):
    train, test = (
        {json.loads(line)["prompt"] for line in (written / name).read_text().splitlines()}
        for name in ("train.jsonl", "test.jsonl")
    )

    assert (len(train), len(test), len(train | test)) == (872, 128, 1000)


@pytest.mark.parametrize("name", ['a"b', "a:b", "a=b", "a\\b"])
def test_a_folder_whose_name_run_toml_cannot_hold_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["quickstart", "--folder", name]) == 2
    assert "expected a path without quotes" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_a_person_has_changed_is_kept_and_a_run_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quiet = ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
    small = ["--rollout.batch_size", "2", "--eval.every", "0", "--checkpoint.every", "1"]

    assert main(["quickstart", "--steps", "1", *quiet, *small]) == 0
    reward = tmp_path / "quickstart/reward.py"
    reward.write_text(reward.read_text() + "# mine\n")
    assert main(["quickstart", "--steps", "2", *quiet, *small]) == 0

    assert reward.read_text().endswith("# mine\n")
    assert "rlhf train -c quickstart/run.toml --resume auto" in capsys.readouterr().out
    lines = (tmp_path / "quickstart/run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 1, 2, 2], "evaluations, too"
