"""Components that break one promise each, of kinds whose bugs tests/mutants does not cover, and what catches them."""

import argparse
import threading
from dataclasses import replace
from math import isfinite

import numpy as np
import pytest
import torch

from rlhf_cli.main import command_tree
from rlhf_core import Component, Config
from rlhf_core.contracts import EndRun, Metric, Observer, ParameterGroup, RewardResult
from rlhf_core.contracts.preset import Preset
from rlhf_core.plugins import empty
from rlhf_testing.conformance import run_checks
from rlhf_testing.conformance.kinds.commands import OWN_COMMANDS

SHAPERS, FILTERS = "rlhf_reward_shapers", "rlhf_sample_filters"
OPTIMIZERS, REWARDS = "rlhf_optimizers", "rlhf_rewards"
LOGGERS = "rlhf_loggers"
COMMANDS = "rlhf_commands"


def caught_by(hook, make):
    return {outcome.check for outcome in run_checks(hook, make) if outcome.failed}


class Shaper:
    """Subtracts the running mean of all rewards seen before."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def shape(self, batch, info):
        mean = self.total / self.count if self.count else 0.0
        self.total += float(batch.reward.sum())
        self.count += len(batch)
        reward = (batch.reward - np.float32(mean)).astype(np.float32)
        return replace(batch, reward=reward), {"reward/mean": Metric(mean)}

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


class Forgetful(Shaper):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        del state


class InPlace(Shaper):
    def shape(self, batch, info):
        batch.reward[:] -= 1.0
        return batch, {}


class CountsEnvironment(Shaper):
    """OpenRLHF 0.11.2: a response is as long as from its first to its last action token."""

    def shape(self, batch, info):
        reward = batch.reward - 0.1 * batch.num_tokens.astype(np.float32)
        return replace(batch, reward=reward.astype(np.float32)), {}


class DropsRows(Shaper):
    def shape(self, batch, info):
        return batch.select(np.arange(len(batch) - 1)), {}


class Doubles(Shaper):
    """Returns float64."""

    def shape(self, batch, info):
        return replace(batch, reward=batch.reward * np.float64(0.5)), {}


class DividesByStd(Shaper):
    def shape(self, batch, info):
        with np.errstate(all="ignore"):
            reward = (batch.reward - batch.reward.mean()) / batch.reward.std()
        return replace(batch, reward=reward.astype(np.float32)), {}


class ShiftsParts(Shaper):
    """Takes from each part what it should take from the reward once."""

    def shape(self, batch, info):
        return replace(batch, step_rewards=batch.step_rewards - np.float32(0.1)), {}


class TokensInState(Shaper):
    def state_dict(self):
        return {"total": np.float32(self.total), "count": self.count}


class NumbersAsKeys(Shaper):
    """Remembers each prompt's mean by its number, which JSON gives back as a text."""

    def __init__(self):
        self.means = {}

    def shape(self, batch, info):
        prompts, reward = batch.uid[:, 1], batch.reward.copy()
        for prompt in np.unique(prompts).tolist():
            reward[prompts == prompt] -= self.means.get(prompt, 0.0)
            self.means[prompt] = float(batch.reward[prompts == prompt].mean())
        return replace(batch, reward=reward), {}

    def state_dict(self):
        return self.means

    def load_state_dict(self, state):
        self.means = dict(state)


class NumbersAsUnreadKeys(NumbersAsKeys):
    """Changes no reward by what it remembers: a run ends at its first checkpoint all the same."""

    def shape(self, batch, info):
        self.means = dict.fromkeys(batch.uid[:, 1].tolist(), 0.0)
        return batch, {}


def test_a_right_shaper_passes():
    assert caught_by(SHAPERS, Shaper) == set()


@pytest.mark.parametrize(
    ("shaper", "check"),
    [
        (Forgetful, "check_state_continues"),
        (TokensInState, "check_state_continues"),
        (NumbersAsKeys, "check_state_continues"),
        (NumbersAsUnreadKeys, "check_state_continues"),
        (InPlace, "check_inputs_stay_as_they_are"),
        (CountsEnvironment, "check_environment_text_does_not_count"),
        (DropsRows, "check_only_rewards_change"),
        (Doubles, "check_rewards_stay_finite"),
        (DividesByStd, "check_rewards_stay_finite"),
        (ShiftsParts, "check_parts_change_no_total"),
    ],
)
def test_a_wrong_shaper_is_caught(shaper, check):
    assert check in caught_by(SHAPERS, shaper)


class Filter:
    def keep(self, group, info):
        spread = float(group.total_reward.max() - group.total_reward.min())
        return "equal_rewards" if spread == 0 else None


class Answers(Filter):
    def keep(self, group, info):
        return super().keep(group, info) is None


class Remembers(Filter):
    def __init__(self):
        self.seen = 0

    def keep(self, group, info):
        self.seen += 1
        return "too_many" if self.seen > 8 else super().keep(group, info)


class CountsTokens(Filter):
    def keep(self, group, info):
        return "too_long" if group.num_tokens.max() > 20 else None


class Writes(Filter):
    def keep(self, group, info):
        group.reward[:] = 0.0
        return None


class PrefersPrompts(Filter):
    def keep(self, group, info):
        return "late" if group.uid[0, 1] > 10 else None


class CountsAllRuns(Observer):
    """Ends a run by a number that all runs of the process count up."""

    steps = 0

    def step_end(self, step, metrics):
        CountsAllRuns.steps += 1
        return EndRun(reason="enough") if CountsAllRuns.steps > 3 else None


def test_an_observer_that_counts_the_steps_of_all_runs_is_caught():
    assert "check_runs_share_nothing" in caught_by("rlhf_observers", CountsAllRuns)


class NearlyCalled(Observer):
    """Its second method has a name that no event has."""

    def step_end(self, step, metrics):
        return None

    def run_ended(self, result):
        raise AssertionError("nothing calls it")


class AnswersTheStart(Observer):
    def run_start(self, run):
        return EndRun(reason="the disk is full")


@pytest.mark.parametrize(
    ("observer", "check"),
    [
        (NearlyCalled, "check_it_hears_something"),
        (AnswersTheStart, "check_answers_are_ends_with_reasons"),
    ],
)
def test_what_no_run_hears_of_an_observer_is_caught(observer, check):
    assert caught_by("rlhf_observers", observer) == {check}


def test_a_right_filter_passes():
    assert caught_by(FILTERS, Filter) == set()


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (Answers, "check_the_answer_is_none_or_a_word"),
        (Remembers, "check_groups_are_judged_alone"),
        (CountsTokens, "check_environment_text_does_not_count"),
        (Writes, "check_inputs_stay_as_they_are"),
        (PrefersPrompts, "check_prompts_do_not_matter"),
    ],
)
def test_a_wrong_filter_is_caught(wrong, check):
    assert check in caught_by(FILTERS, wrong)


class Sgd:
    def parameter_groups(self, named_parameters):
        named = tuple(pair for pair in named_parameters if pair[1].requires_grad)
        return [ParameterGroup(name="all", named_parameters=named)]

    def create(self, groups):
        parameters = [p for group in groups for _, p in group.named_parameters]
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class TrainsFrozen(Sgd):
    def parameter_groups(self, named_parameters):
        return [ParameterGroup(name="all", named_parameters=tuple(named_parameters))]


class Climbs(Sgd):
    def create(self, groups):
        parameters = [p for group in groups for _, p in group.named_parameters]
        return torch.optim.SGD(parameters, lr=0.1, maximize=True)


class HidesMomentum(Sgd):
    """Its momentum is not in the state that is saved."""

    def create(self, groups):
        parameters = [p for group in groups for _, p in group.named_parameters]

        class Hidden(torch.optim.SGD):
            def state_dict(self):
                return {**super().state_dict(), "state": {}}

        return Hidden(parameters, lr=0.1, momentum=0.9)


def test_a_right_optimizer_passes():
    assert caught_by(OPTIMIZERS, Sgd) == set()


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (TrainsFrozen, "check_every_parameter_is_in_one_group"),
        (Climbs, "check_the_loss_falls"),
        (HidesMomentum, "check_state_continues"),
    ],
)
def test_a_wrong_optimizer_is_caught(wrong, check):
    assert check in caught_by(OPTIMIZERS, wrong)


class Length:
    async def score(self, requests):
        return [RewardResult(reward=float(len(request.response))) for request in requests]


class RanksTheBatch(Length):
    async def score(self, requests):
        lengths = sorted(len(request.response) for request in requests)
        return [
            RewardResult(reward=float(lengths.index(len(request.response)))) for request in requests
        ]


class Divides(Length):
    async def score(self, requests):
        return [
            RewardResult(reward=1.0 / len(request.response) if request.response else float("nan"))
            for request in requests
        ]


class WritesIntoRows(Length):
    async def score(self, requests):
        for request in requests:
            request.row["answer"] = "0"
        return await super().score(requests)


class Places(Length):
    """A part on every action of the sample, of which each has two."""

    parts = ((0, 1.0), (1, 0.5))
    reward = 1.5

    async def score(self, requests):
        return [RewardResult(reward=self.reward, step_rewards=self.parts) for _ in requests]


class PlacesBehindTheEnd(Places):
    parts = ((2, 1.5),)


class PlacesAnotherSum(Places):
    reward = 1.0


def test_a_reward_in_parts_passes_if_it_says_so():
    says_so = Component(name="places", factory=lambda _: Places(), needs={"credits_tokens"})

    assert caught_by(REWARDS, says_so) == set()
    assert caught_by(REWARDS, Places) == {"check_step_rewards_are_declared"}


def test_a_right_reward_passes_also_where_it_gives_up_on_a_sample():
    class GivesUp(Length):
        async def score(self, requests):
            results = await super().score(requests)
            return [
                result if request.response else ValueError("empty")
                for request, result in zip(requests, results, strict=True)
            ]

    assert caught_by(REWARDS, Length) == set()
    assert caught_by(REWARDS, GivesUp) == set()


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (RanksTheBatch, "check_samples_are_scored_apart"),
        (Divides, "check_one_finite_score_per_sample"),
        (WritesIntoRows, "check_requests_stay_as_they_are"),
        (PlacesBehindTheEnd, "check_one_finite_score_per_sample"),
        (PlacesAnotherSum, "check_one_finite_score_per_sample"),
    ],
)
def test_a_wrong_reward_is_caught(wrong, check):
    assert check in caught_by(REWARDS, wrong)


class PlainLogger:
    """Keeps lines in a file of the run folder."""

    def start(self, run):
        self.file = run.output / "lines.txt"
        self.add(f"start {run.start_step}")

    def log_metrics(self, step, metrics):
        self.add(f"{step} {sorted(metrics.items())}")

    def log_samples(self, step, samples):
        self.add(f"{step} {[sample.response for sample in samples]}")

    def finish(self, result):
        self.add(result.status)

    def add(self, line):
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class RoundsToIntegers(PlainLogger):
    def log_metrics(self, step, metrics):
        super().log_metrics(step, {name: int(value) for name, value in metrics.items()})


class EachStepOnce(PlainLogger):
    last = -1

    def log_metrics(self, step, metrics):
        assert step > self.last, "steps have to rise"
        self.last = step
        super().log_metrics(step, metrics)


class KnowsTwoEnds(PlainLogger):
    def finish(self, result):
        self.add({"finished": "0", "failed": "1"}[result.status])


class NewFileOnly(PlainLogger):
    def start(self, run):
        (run.output / "lines.txt").open("x").close()
        super().start(run)


class LeavesOut(PlainLogger):
    """Removes what is not finite from the metrics of everybody."""

    def log_metrics(self, step, metrics):
        for name in [name for name, value in metrics.items() if not isfinite(value)]:
            del metrics[name]


class TakesOutput(PlainLogger):
    def start(self, run):
        super().start(run)
        run.config.pop("output")


class StartsAtOnce(PlainLogger):
    """Sends from a thread that begins with the object."""

    def __init__(self):
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait, args=(5.0,), daemon=True).start()


class WithKey(Config):
    api_key: str = ""


def test_a_right_logger_passes():
    assert caught_by(LOGGERS, PlainLogger) == set()


@pytest.mark.parametrize(
    ("logger", "check"),
    [
        (RoundsToIntegers, "check_a_whole_run_is_taken"),
        (EachStepOnce, "check_a_whole_run_is_taken"),
        (KnowsTwoEnds, "check_every_end_is_taken"),
        (NewFileOnly, "check_an_ended_run_goes_on"),
        (LeavesOut, "check_inputs_stay_as_they_are"),
        (TakesOutput, "check_inputs_stay_as_they_are"),
        (StartsAtOnce, "check_making_one_starts_nothing"),
    ],
)
def test_a_wrong_logger_is_caught(logger, check):
    assert check in caught_by(LOGGERS, logger)


def test_a_key_among_the_options_of_a_logger_is_caught():
    with_key = Component(name="keyed", factory=lambda config: PlainLogger(), config=WithKey)

    assert caught_by(LOGGERS, with_key) == {"check_no_option_holds_a_secret"}


def counts_words(words):
    parser = argparse.ArgumentParser(prog="rlhf count")
    parser.add_argument("words", nargs="*")
    print(len(parser.parse_args(words).words))
    return 0


def has_no_help(words):
    print("working ...")
    return 1 if words else 0


def knows_everything(words):
    print("usage: rlhf anything", *words)
    return 0


def says_nothing_of_mistakes(words):
    if words == ["--help"]:
        print("usage: rlhf mute")
        return 0
    return 2


def fails_of_mistakes(words):
    return {"--help": lambda: print("usage: rlhf rude")}[words[0]]()


def eats_its_words(words):
    print("usage: rlhf eater")
    return 0 if words.pop() == "--help" else 2


def answers_in_words(words):
    print("usage: rlhf words")
    return 0 if words == ["--help"] else "no such option"


def goes_round(words):
    print("usage: rlhf round")
    return 0 if words == ["--help"] else 256


@pytest.mark.parametrize(
    ("command", "caught"),
    [
        (counts_words, set()),
        (answers_in_words, {"check_unknown_options_are_refused"}),
        (goes_round, {"check_unknown_options_are_refused"}),
        (has_no_help, {"check_help_is_an_answer"}),
        (knows_everything, {"check_unknown_options_are_refused"}),
        (says_nothing_of_mistakes, {"check_unknown_options_are_refused"}),
        (fails_of_mistakes, {"check_unknown_options_are_refused"}),
        (eats_its_words, {"check_words_stay_as_they_are"}),
    ],
)
def test_commands_that_break_a_promise_are_caught(command, caught):
    assert caught_by(COMMANDS, Component(name="it", factory=command)) == caught


@pytest.mark.parametrize("name", ["train", "sft"])
def test_a_command_whose_name_is_taken_is_caught(name):
    """One is of rlhf itself, and one of an installed plugin."""
    wanted = Component(name=name, factory=counts_words)

    assert caught_by(COMMANDS, wanted) == {"check_its_name_is_free"}


def test_the_names_of_the_commands_of_rlhf_itself_are_known():
    tree = command_tree(empty())
    infos = (*tree.registered_commands, *tree.registered_groups)

    assert {info.name for info in infos} == OWN_COMMANDS


@pytest.mark.parametrize(
    ("text", "check", "says"),
    [
        ('[algo.kl]\ncoef = "high"', "check_every_value_fits", "algo.kl.coef"),
        ("[rollout]\nn_samples_per_prompt = 0", "check_every_value_fits", "equal to 1"),
        ('[algo.loss]\naggregation = "token-men"', "check_every_value_fits", "token-mean"),
        ('[algo.loss.ppo]\nclip_low = "x"', "check_every_value_fits", "algo.loss.ppo.clip_low"),
        ('[reward.math]\nweight = "x"', "check_every_value_fits", "reward.math.weight"),
        (
            'algo.loss.policy = "ppo" #\nalgo.loss.gspo.clip_low = 0.1',
            "check_every_value_fits",
            "algo.loss.policy is ppo",
        ),
        ("[algo.kl]\ncoeff = 0.1", "check_every_option_exists", "algo.kl.coeff"),
        ('preset = "grpo"', "check_every_option_exists", "names a preset"),
    ],
)
def test_a_preset_that_no_run_could_use_is_caught(tmp_path, text, check, says):
    (tmp_path / "mine.toml").write_text(f"{text}  # table 1\n")

    outcomes = run_checks("rlhf_presets", lambda: Preset(tmp_path / "mine.toml"))

    failed = {outcome.check: outcome.reason for outcome in outcomes if outcome.failed}
    assert failed.keys() == {check}
    assert says in failed[check]


def test_a_preset_that_selects_what_is_not_installed_fails_its_check(tmp_path):
    (tmp_path / "mine.toml").write_text('[algo.loss]\npolicy = "papo"  # equation 3\n')

    failed = [
        outcome
        for outcome in run_checks("rlhf_presets", lambda: Preset(tmp_path / "mine.toml"))
        if outcome.failed
    ]

    assert [outcome.check for outcome in failed] == ["check_every_component_is_installed"]
    assert "papo" in str(failed[0])
