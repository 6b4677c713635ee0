"""Faults that are planted in a sound environment, each of which exactly one check finds."""

import os
from dataclasses import replace

import pytest
from tests.deadlines import HANG_S
from tests.libs.testing.environments import sums

from rlhf_core import Component
from rlhf_core.component import Registered
from rlhf_testing.conformance import applying, checks_of, run_checks, subject
from rlhf_testing.conformance.environments import lifetime, playing, scoring

HOOK = "rlhf_environments"

FAULTS = {
    "check_there_is_something_to_play": [sums.NothingToPlay],
    "check_task_keys_are_unique": [sums.SameKeys],
    "check_tasks_are_the_same_each_time": [sums.NewTasksEachTime],
    "check_rows_are_plain": [sums.TupleInARow],
    "check_unknown_splits_are_refused": [sums.AnySplit],
    "check_splits_do_not_overlap": [sums.TrainsOnItsEvaluation, sums.RenamesItsTraining],
    "check_a_sequence_has_its_length": [sums.SaysThereAreMore],
    "check_results_are_well_formed": [
        sums.SometimesNaN,
        sums.HugeObservation,
        sums.RewardAsText,
        sums.HalfAPicture,
        sums.NoPicture,
        sums.BringsToolsLater,
    ],
    "check_observations_are_new": [
        sums.RepeatsTheText,
        sums.RepeatsTheQuestion,
        sums.AnswersAsThePolicy,
    ],
    "check_rewards_stay_in_the_range": [sums.OutsideOfTheRange],
    "check_malformed_actions": [sums.IntOfDigits, sums.TrustsJson, sums.HangsOnNul],
    "check_episodes_end": [sums.NeverEnds, sums.SaysSingleTurn, sums.GoesOnAfterTheAnswer],
    "check_closing_without_an_episode": [sums.ClosesWhatItHasNot],
    "check_a_thousand_episodes_at_once": [sums.AHundredAtMost],
    "check_cancellation_leaves_nothing": [
        sums.ForgetsItsTask,
        sums.ForgetsItsFile,
        sums.ForgetsItsThread,
    ],
    "check_rows_stay_as_they_are": [sums.ChangesItsRow],
    "check_episode_determinism": [sums.DrawsFromEveryone, sums.OtherPictures],
    "check_verifier_determinism": [sums.NoisyRewards],
    "check_no_shared_state": [sums.SharedSecret],
    "check_oracle_max": [sums.OracleIsWrong],
    "check_oracle_changes_nothing": [sums.MovesWhenAsked],
    "check_floor_gap": [sums.AnythingEarnsMuch],
    "check_canary_floor": [sums.MagicWord],
    "check_oracle_containment": [sums.ShowsItsAnswer],
    "check_text_is_not_run": [sums.RunsWhatIsWritten],
    "check_global_randomness_is_left_alone": [sums.SeedsEveryone],
    "check_no_constant_answer_wins": [
        sums.TakesAConstant,
        sums.MostAnswersAreOne,
        sums.MostAnswersAreParis,
    ],
    "check_no_empty_answer_wins": [sums.TakesNothing],
    "check_no_echo_wins": [sums.TakesItsQuestion],
    "check_no_truncated_answer_wins": [sums.TakesABeginning, sums.TakesMostOfIt],
    "check_no_claim_wins": [sums.BelievesClaims],
    "check_no_list_of_answers_wins": [sums.SearchesForTheAnswer],
    "check_no_single_word_wins": [sums.TellsAShortSecret],
    "check_no_answer_is_told_after_a_wrong_one": [sums.TellsAfterAWrongAnswer],
}
_WORD = "check_no_single_word_wins"
ALSO = {
    # What stands in the text, or is accepted whatever it is, is a word of the text too.
    sums.ShowsItsAnswer: {_WORD},
    sums.RunsWhatIsWritten: {_WORD},
    sums.TakesNothing: {_WORD},
    sums.TellsAfterAWrongAnswer: {_WORD},
    # One digit begins a third of all answers.
    sums.TakesABeginning: {"check_no_constant_answer_wins"},
    # Half of an answer that was asked for twice is all of the second one.
    sums.MovesWhenAsked: {"check_no_truncated_answer_wins"},
    # Searches that meet a reward that is no number cannot say that a hack earns less.
    sums.SometimesNaN: {_WORD, "check_no_echo_wins", "check_no_empty_answer_wins"},
}
"""Other checks that rightly find a fault as well."""
ELSEWHERE = "check_another_process_plays_the_same"
BLOCKING = "check_steps_do_not_block"
PLANTED = [(check, fault) for check, faults in FAULTS.items() for fault in faults]


def registered(environment):
    component = Component(
        name="sums", factory=environment, config=sums.SumsConfig, summary="add numbers"
    )
    return Registered(component, "tests")


def found(environment, only=None, leaving_out=(ELSEWHERE, BLOCKING)):
    """Names of the checks that find something."""
    # What such an environment holds is held for ever; what others hold is gone, on a busy machine, too.
    lifetime._SETTLE_S = (
        0.2 if environment in FAULTS["check_cancellation_leaves_nothing"] else HANG_S
    )
    tried = subject(registered(environment))
    names = set()
    for check in applying(HOOK, tried):
        if check.name in leaving_out or only not in (None, check.name):
            continue
        try:
            check(tried)
        except AssertionError:
            names.add(check.name)
    return names


@pytest.fixture(autouse=True)
def settling(monkeypatch):
    monkeypatch.setattr(lifetime, "_SETTLE_S", HANG_S)
    sums.AHundredAtMost.alive = 0
    sums.ForgetsItsThread.stop.clear()
    sums.ForgetsItsThread.left.clear()
    yield
    sums.ForgetsItsThread.stop.set()
    for file in sums.ForgetsItsFile.left:
        os.close(file)
    sums.ForgetsItsFile.left.clear()


@pytest.mark.parametrize("environment", [sums.Sums, sums.EndlessTasks, sums.Pictures])
def test_a_sound_environment_passes_every_check(environment, monkeypatch):
    monkeypatch.setattr(lifetime, "MAX_BLOCKED_S", HANG_S)
    outcomes = run_checks(HOOK, registered(environment))

    assert [(one.check, one.reason) for one in outcomes if one.status != "ok"] == []
    assert len(outcomes) >= 28


each_fault = pytest.mark.parametrize(
    ("check", "fault"), PLANTED, ids=[fault.__name__ for _, fault in PLANTED]
)


@each_fault
def test_a_planted_fault_is_found_by_its_check(check, fault, monkeypatch):
    if fault is sums.HangsOnNul:
        monkeypatch.setattr(playing, "STEP_LIMIT_S", 0.1)

    assert found(fault, only=check) == {check}


# That its own check finds it is tested of each fault.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "fault"),
    [
        pytest.param(*one, marks=pytest.mark.matrix if number % 3 else (), id=one[1].__name__)
        for number, one in enumerate(PLANTED)
    ],
)
def test_no_other_check_finds_a_planted_fault(check, fault, monkeypatch):
    monkeypatch.setattr(lifetime, "MAX_TURNS", 20)
    monkeypatch.setattr(scoring, "MAX_TURNS", 20)
    monkeypatch.setattr(lifetime, "AT_ONCE", 200)
    # Its own check would wait for the limit of a step, and a shorter limit is a slow machine's fault elsewhere.
    own = {check} if fault is sums.HangsOnNul else set()

    assert (
        found(fault, leaving_out=(ELSEWHERE, BLOCKING, *own))
        == ({check} | ALSO.get(fault, set())) - own
    )


@pytest.mark.parametrize("environment", [sums.HidesASecret, sums.HidesLaterAnswers])
def test_tasks_whose_secrets_differ_are_different_tasks(environment):
    assert found(environment, only="check_splits_do_not_overlap") == set()


def test_what_depends_on_the_hashes_of_texts_is_found_in_another_process():
    assert found(sums.OrderOfHashes, leaving_out=(BLOCKING,)) == {ELSEWHERE}


def test_a_call_that_holds_the_event_loop_is_found(monkeypatch):
    monkeypatch.setattr(lifetime, "MAX_BLOCKED_S", 0.2)
    check = next(each for each in checks_of(HOOK) if each.name == BLOCKING)

    with pytest.raises(AssertionError, match=r"held the event loop for \d+\.\d s.*await"):
        check(subject(registered(sums.SleepsWithoutAwait)))


def test_at_least_twenty_faults_are_planted_and_every_check_finds_one():
    planted = {check for check, _ in PLANTED} | {ELSEWHERE, BLOCKING}

    assert planted == {check.name for check in checks_of(HOOK)}
    assert len(PLANTED) >= 30


def test_an_environment_without_answers_is_not_searched_for_hacks():
    class NoOracle(sums.Sums):
        oracle = None

    names = {check.name for check in applying(HOOK, subject(registered(NoOracle)))}
    assert "check_episodes_end" in names
    assert not {name for name in names if "oracle" in name or "wins" in name}


def test_right_answers_may_stand_in_the_rows():
    class Rows(sums.Sums):
        oracle = None

        def row(self, split, number, first):
            row = super().row(split, number, first)
            return {**row, "oracle": str(row["a"] + row["b"])}

        async def reset(self, task, seed):
            observation = await super().reset(task, seed)
            self.total = str(task.row["a"] + task.row["b"]) if task.row else self.total
            return observation

    assert found(Rows) == set()


@pytest.mark.parametrize(("shown", "told"), [("1{}", False), ("{}0", False), ("it is {}.", True)])
def test_an_answer_is_not_told_by_some_digits_of_a_longer_number(shown, told):
    class Shows(sums.Sums):
        async def reset(self, task, seed):
            observation = await super().reset(task, seed)
            return replace(observation, text=f"{observation.text} ({shown.format(self.total)})")

    containment = "check_oracle_containment"
    assert found(Shows, only=containment) == ({containment} if told else set())


def test_a_reason_says_what_was_done_and_what_came():
    check = next(each for each in checks_of(HOOK) if each.name == "check_malformed_actions")

    with pytest.raises(AssertionError, match=r"after a long number \(stop: eos\): ValueError"):
        check(subject(registered(sums.IntOfDigits)))
