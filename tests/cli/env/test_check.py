"""``rlhf env check``: one line a check, those that do not apply named, and an exit code."""

import json

import pytest


def test_a_sound_environment_passes_with_the_ids_of_its_checks(env, sums):
    code, out, _ = env("check", "sums.py:SUMS")

    lines = out.splitlines()
    found = {line.split()[1].rstrip(":") for line in lines if line.startswith("ok")}
    assert code == 0, out
    assert {"oracle_max", "floor_gap", "oracle_containment", "episode_determinism"} <= found
    assert "not checked: canary_floor." in out
    assert lines[-1].startswith("sums@2: 28 checks, 0 failed")


def test_a_fault_is_named_with_its_reason_and_gives_exit_code_1(env, sums):
    source = sums.read_text()
    sums.write_text(source.replace("in (action.text.strip(), called)", "in action.text + called"))

    code, out, _ = env("check", "sums.py:SUMS", "--json")

    report = json.loads(out)
    failed = {each["id"]: each["reason"] for each in report["checks"] if each["status"] == "FAILED"}
    assert code == 1
    assert list(failed) == ["no_list_of_answers_wins"]
    assert "earns 1.5 on average, and right answers 1.5" in failed["no_list_of_answers_wins"]
    assert (report["environment"], report["failed"]) == ("sums@2", 1)


def test_without_right_answers_the_rest_is_checked_and_the_command_says_what_is_missing(env, sums):
    sums.write_text(sums.read_text().replace("async def oracle", "async def not_an_oracle"))

    code, out, _ = env("check", "sums.py:SUMS")

    assert code == 0, out
    assert "not checked: oracle_max, floor_gap" in out
    assert "a method oracle, or a column oracle of its rows" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tries", "0"], "--env.sums.tries: expected at least 1"),
        (["--tries", "many"], "--env.sums.tries"),
        (["--env.sums.trys", "3"], "--env.sums.trys"),
        (["--env.other.tries", "3"], "expected an option of sums"),
        (["tries"], "'tries'"),
    ],
)
def test_wrong_options_are_errors_of_their_flag(env, sums, words, said):
    code, _, err = env("check", "sums.py:SUMS", *words)

    assert code == 2
    assert said in err


def test_options_of_the_environment_reach_it(env, sums):
    code, out, _ = env("check", "sums.py:SUMS", "--json", "--tries", "3", "--names", "a", "b")

    report = json.loads(out)
    assert code == 0
    assert report["options"] == {"tries": 3, "names": ["a", "b"]}
