"""Checks of environments (``contracts.Environment``). No model plays: right answers come from the environment itself or
from its rows, and other answers from here."""

from __future__ import annotations

from ..environments.answers import check_malformed_actions
from ..environments.elsewhere import runs_elsewhere
from ..environments.hacks import (
    check_no_claim_wins,
    check_no_constant_answer_wins,
    check_no_echo_wins,
    check_no_empty_answer_wins,
    check_no_list_of_answers_wins,
    check_no_truncated_answer_wins,
)
from ..environments.lifetime import (
    check_a_thousand_episodes_at_once,
    check_cancellation_leaves_nothing,
    check_closing_without_an_episode,
    check_episodes_end,
    check_steps_do_not_block,
)
from ..environments.material import knows_answers, makes_tasks
from ..environments.repeating import (
    check_another_process_plays_the_same,
    check_episode_determinism,
    check_no_shared_state,
    check_rows_stay_as_they_are,
    check_verifier_determinism,
    is_deterministic,
)
from ..environments.results import (
    check_results_are_well_formed,
    check_rewards_stay_in_the_range,
    states_a_range,
)
from ..environments.rows import (
    check_rows_are_plain,
    check_splits_do_not_overlap,
    check_task_keys_are_unique,
    check_tasks_are_the_same_each_time,
    check_there_is_something_to_play,
    check_unknown_splits_are_refused,
)
from ..environments.running import (
    check_global_randomness_is_left_alone,
    check_text_is_not_run,
)
from ..environments.scoring import (
    check_canary_floor,
    check_floor_gap,
    check_oracle_containment,
    check_oracle_max,
    has_canaries,
)
from ..environments.told import (
    check_no_answer_is_told_after_a_wrong_one,
    check_no_single_word_wins,
)
from ..subject import Check, Subject


def _states_a_range_and_knows_answers(subject: Subject) -> bool:
    return states_a_range(subject) and knows_answers(subject)


def _has_canaries_and_knows_answers(subject: Subject) -> bool:
    return has_canaries(subject) and knows_answers(subject)


_RESULTS = check_results_are_well_formed.__name__
"""Check without which rewards cannot be compared."""

CHECKS = (
    # First: where a step blocks, every other check that plays would wait for it again and again.
    Check(check_steps_do_not_block, deadline_s=60.0),
    Check(check_there_is_something_to_play, makes_tasks, stands_alone=True),
    Check(check_task_keys_are_unique, makes_tasks, stands_alone=True),
    Check(check_tasks_are_the_same_each_time, makes_tasks, stands_alone=True),
    Check(check_rows_are_plain, makes_tasks, stands_alone=True),
    Check(check_unknown_splits_are_refused, makes_tasks, stands_alone=True),
    Check(check_splits_do_not_overlap, makes_tasks, usual=True),
    Check(check_results_are_well_formed),
    Check(check_rewards_stay_in_the_range, states_a_range),
    Check(check_malformed_actions, deadline_s=120.0),
    Check(check_episodes_end),
    Check(check_closing_without_an_episode, stands_alone=True),
    Check(check_a_thousand_episodes_at_once),
    Check(check_cancellation_leaves_nothing),
    Check(check_text_is_not_run),
    Check(check_global_randomness_is_left_alone),
    Check(check_rows_stay_as_they_are),
    Check(check_episode_determinism, is_deterministic),
    Check(check_verifier_determinism, is_deterministic),
    Check(check_no_shared_state, is_deterministic),
    Check(check_another_process_plays_the_same, runs_elsewhere),
    Check(check_oracle_max, _states_a_range_and_knows_answers, rests_on=_RESULTS),
    Check(check_floor_gap, knows_answers, rests_on=_RESULTS),
    Check(check_canary_floor, _has_canaries_and_knows_answers, rests_on=_RESULTS),
    Check(check_oracle_containment, knows_answers),
    Check(check_no_constant_answer_wins, knows_answers, rests_on=_RESULTS),
    Check(check_no_empty_answer_wins, knows_answers, rests_on=_RESULTS),
    Check(check_no_echo_wins, knows_answers, rests_on=_RESULTS),
    Check(check_no_truncated_answer_wins, knows_answers, rests_on=_RESULTS),
    Check(check_no_claim_wins, knows_answers, rests_on=_RESULTS),
    Check(check_no_list_of_answers_wins, knows_answers, rests_on=_RESULTS),
    Check(check_no_single_word_wins, knows_answers, rests_on=_RESULTS),
    Check(check_no_answer_is_told_after_a_wrong_one, knows_answers, rests_on=_RESULTS),
)
