"""``rlhf env show``: options, manifest and first tasks of one environment."""


def test_an_environment_is_shown_with_manifest_and_tasks(env, sums):
    code, out, _ = env("show", "sums.py:SUMS", "--rows", 2)

    assert code == 0
    assert "sums@2" in out
    assert "kind: multi_turn" in out
    assert "reward of an episode: 0 to 1.5" in out
    assert "license: MIT" in out
    assert "split train: 20 tasks" in out
    assert out.count('"key": "train-') == 2
    assert '"key": "eval-0"' in out


def test_another_split_can_be_asked_for_and_one_that_is_not_there_is_named(env, sums):
    _, out, _ = env("show", "sums.py:SUMS", "--split", "eval", "--split", "test")

    assert "train" not in out
    assert "split test: there is none" in out


def test_an_installed_environments_options_are_shown(env):
    code, out, _ = env("show", "echo_after_hint")

    assert code == 0
    assert "num_digits INT (default 4)" in out
    assert "makes no tasks" in out


def test_an_unknown_environment_is_an_error_with_its_neighbours(env):
    code, _, err = env("show", "echo_after_hin")

    assert code == 2
    assert "echo_after_hint" in err
