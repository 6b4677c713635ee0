"""``rlhf env check``: one line a check, those that do not apply named, and an exit code."""

import importlib
import json
from dataclasses import replace

import pytest
from tests.deadlines import HANG_S


def test_a_sound_environment_passes_with_the_ids_of_its_checks(env, sums):
    code, out, _ = env("check", "sums.py:SUMS")

    lines = out.splitlines()
    found = {line.split()[1].rstrip(":") for line in lines if line.startswith("ok")}
    assert code == 0, out
    assert {"oracle_max", "floor_gap", "oracle_containment", "episode_determinism"} <= found
    assert "not checked: canary_floor." in out
    assert lines[-1].startswith("sums@2: 35 checks, 0 failed")


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


@pytest.mark.parametrize(("every", "share", "status"), [(24, "25%", "ok"), (12, "50%", "FAILED")])
def test_the_best_answer_that_is_none_is_shown_with_its_share(env, sums, every, share, status):
    # Sums are 8001 + 6 n: 42 is taken by every fourth task, or by every second one.
    taken = f"right = action.text == '42' and int(self.total) % {every} == 9 or self.total"
    sums.write_text(sums.read_text().replace("right = self.total", taken))

    code, out, _ = env("check", "sums.py:SUMS")

    line = next(line for line in out.splitlines() if "no_constant_answer_wins" in line)
    assert code == (status == "FAILED")
    assert line.startswith(status)
    assert "'42' earns" in line
    assert share in line


def test_behind_a_step_without_an_end_tasks_are_checked(env, sums, monkeypatch):
    from rlhf_testing.conformance.kinds import environments

    first = environments.CHECKS[0]
    assert first.name == "check_steps_do_not_block"
    monkeypatch.setattr(
        environments, "CHECKS", (replace(first, deadline_s=0.5), *environments.CHECKS[1:3])
    )
    sums.write_text(
        sums.read_text()
        .replace("called = ", "time.sleep(4); called = ", 1)
        .replace("import asyncio", "import asyncio, time", 1)
    )

    code, out, _ = env("check", "sums.py:SUMS", "--json")

    report = json.loads(out)
    assert code == 1
    assert [(each["id"], each["status"]) for each in report["checks"]] == [
        ("steps_do_not_block", "FAILED"),
        ("there_is_something_to_play", "ok"),
        ("task_keys_are_unique", "ok"),
    ]
    assert "no result within 0.5 s: a call computes or waits" in report["checks"][0]["reason"]
    assert report["not_run"] == []


def test_what_plays_behind_a_step_without_an_end_has_little_time_and_then_none(
    env, sums, checks, monkeypatch
):
    # The package has a function of this name.
    module = importlib.import_module("rlhf_cli.env.check")
    monkeypatch.setattr(module, "_LATER_S", 0.3)
    checks(
        steps_do_not_block=0.3,
        results_are_well_formed=60.0,
        episodes_end=0.2,
        malformed_actions=60.0,
        closing_without_an_episode=60.0,
    )
    sums.write_text(
        sums.read_text()
        .replace("called = ", "time.sleep(60); called = ", 1)
        .replace("import asyncio", "import asyncio, time", 1)
    )

    code, out, _ = env("check", "sums.py:SUMS", "--json")

    report = json.loads(out)
    assert code == 1
    # One that has no more than its own time has failed.
    assert [(each["id"], each["status"]) for each in report["checks"]] == [
        ("steps_do_not_block", "FAILED"),
        ("episodes_end", "FAILED"),
        ("closing_without_an_episode", "ok"),
    ]
    assert report["not_run"] == ["results_are_well_formed", "malformed_actions"]


@pytest.fixture
def checks(monkeypatch):
    """Have the command run these checks alone, by name, with seconds for each."""
    from rlhf_testing.conformance.kinds import environments

    known = {each.name.removeprefix("check_"): each for each in environments.CHECKS}

    def choose(**seconds):
        chosen = (replace(known[name], deadline_s=limit) for name, limit in seconds.items())
        monkeypatch.setattr(environments, "CHECKS", tuple(chosen))

    return choose


def test_a_pattern_that_backtracks_without_an_end_has_a_result_with_its_place(env, sums, checks):
    """It holds the interpreter, so that no other thread of its process runs."""
    pattern = "re.match('(a+)+$', action.text); called = "
    sums.write_text(
        sums.read_text()
        .replace("called = ", pattern, 1)
        .replace("import asyncio", "import asyncio, re", 1)
    )

    # On a busy machine the check may not come to the pattern within the shorter time.
    for seconds in (2.0, HANG_S / 10):
        checks(steps_do_not_block=60.0, malformed_actions=seconds, there_is_something_to_play=60.0)
        code, out, _ = env("check", "sums.py:SUMS", "--json")
        report = json.loads(out)
        reason = report["checks"][1]["reason"]
        if "in step (" in reason:
            break

    assert code == 1
    assert [each["status"] for each in report["checks"]] == ["ok", "FAILED", "ok"]
    waits = "a call computes or waits without an end, in step ("
    assert f"no result within {seconds:g} s: {waits}" in reason
    assert "sums.py, line" in reason
    assert report["not_run"] == []


def test_a_call_that_ends_its_process_is_a_result_and_the_next_check_runs(env, sums, checks):
    checks(steps_do_not_block=60.0, there_is_something_to_play=60.0)
    sums.write_text(
        sums.read_text()
        .replace("called = ", "os._exit(3); called = ", 1)
        .replace("import asyncio", "import asyncio, os", 1)
    )

    code, out, _ = env("check", "sums.py:SUMS", "--json")

    first, second = json.loads(out)["checks"]
    assert code == 1
    assert "a call ended its process (with exit code 3)" in first["reason"]
    assert second["status"] == "ok"


def test_what_follows_from_one_fault_is_blamed_on_it(env, sums, checks):
    checks(
        results_are_well_formed=60.0, oracle_max=60.0, no_echo_wins=60.0, oracle_containment=60.0
    )
    sums.write_text(sums.read_text().replace("1.0 * right}", "float('nan')}", 1))

    code, out, _ = env("check", "sums.py:SUMS")

    lines = [line for line in out.splitlines() if line.startswith(("FAILED", "ok"))]
    assert code == 1
    assert "results_are_well_formed: random letters, task 0: reward sum is nan" in lines[0]
    follows = "follows from results_are_well_formed, which is to be mended first"
    assert lines[1:] == [
        f"FAILED   oracle_max: {follows}",
        f"FAILED   no_echo_wins: {follows}",
        "ok       oracle_containment",
    ]
    assert "sums@2: 4 checks, 3 failed, 2 of which follow from another" in out


def test_a_fault_that_stands_alone_is_blamed_on_no_other(env, sums, checks):
    checks(results_are_well_formed=60.0, oracle_max=60.0)
    sums.write_text(sums.read_text().replace("1.0 * right}", "0.5 * right}", 1))

    _, out, _ = env("check", "sums.py:SUMS", "--json")

    found = json.loads(out)["checks"]
    assert [(each["status"], each["follows_from"]) for each in found] == [
        ("ok", None),
        ("FAILED", None),
    ]
    assert "expected 1.5" in found[1]["reason"]
