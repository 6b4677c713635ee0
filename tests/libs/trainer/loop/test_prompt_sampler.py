"""A prompt sampler in a run: it learns of results, its state is resumed, and its mistakes lose nothing."""

from itertools import islice

import pytest

from rlhf_core import Component, ConfigError, PluginError, ResumeError
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import replay

STEPS = {"train": {"steps": 6}, "checkpoint": {"every": 1}, "data": {"sampler": "longest"}}
AUTO = {"resume": {"checkpoint": "auto"}}
AHEAD = {"rollout": {"max_staleness": 1}}


class Longest:
    """Draws the prompts with the longest answers again and again, and each third time one that it does not know."""

    def __init__(self, config):
        self.means = {}
        self.noted = []
        self.requests = []

    def begin(self, prompts):
        self.prompts = prompts

    def draw(self, request):
        self.requests.append(request)
        best = sorted(self.means, key=lambda index: (-self.means[index], index))
        unknown = (i for i in self.prompts.indices.tolist() if i not in self.means)
        known = iter([index for index in best if index not in request.in_flight])
        return [
            next(unknown if (request.taken + number) % 3 == 0 else known, None)
            or next(islice(self.prompts.indices.tolist(), number, None))
            for number in range(request.count)
        ]

    def note(self, results):
        self.noted += results
        for result in results:
            self.means[result.index] = sum(result.rewards) / len(result.rewards)

    def state_dict(self):
        return {"means": sorted(self.means.items())}

    def load_state_dict(self, state):
        self.means = dict(state["means"])


@pytest.fixture
def samplers(small_run):
    """Samplers of the runs that were started, in their order."""
    made = []

    def make(config):
        made.append(Longest(config))
        return made[-1]

    small_run.with_component("rlhf_prompt_samplers", Component(name="longest", factory=make))
    return made


def draws(small_run, output="run"):
    """Groups in the order in which they were drawn, those of void lines left out."""
    kept = []
    for line in small_run.lines("ledger.jsonl", output):
        if line["event"] == "resumed":
            kept = [one for one in kept if one["step"] <= line["step"]]
        else:
            kept.append(line)
    return [group for line in kept if line["event"] == "planned" for group in line["groups"]]


def test_a_sampler_learns_of_every_group_with_the_rewards_as_they_were_given(small_run, samplers):
    small_run(STEPS)

    (sampler,) = samplers
    assert [r.step for r in sampler.noted] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert all(len(result.rewards) == 2 for result in sampler.noted)
    noted = [f"{result.epoch}.{result.index}" for result in sampler.noted]
    assert sorted(noted) == sorted(draws(small_run))
    assert len(set(draws(small_run))) == 12  # each draw has a name of its own
    assert len({result.index for result in sampler.noted}) < 12  # although prompts come again


@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["on policy", "ahead"])
@pytest.mark.parametrize("event", ["learn", "save", "generate"])
@pytest.mark.parametrize("time", [2, 4])
def test_a_run_that_broke_off_draws_what_the_whole_run_draws(
    small_run, samplers, ahead, event, time
):
    small_run(STEPS, ahead, output="whole")
    small_run.diary.__init__()
    small_run.diary.fail(event, RuntimeError("killed"), time=time)
    with pytest.raises(Exception, match="killed"):
        small_run(STEPS, ahead)

    small_run(STEPS, ahead, AUTO)

    assert draws(small_run) == draws(small_run, "whole")
    assert samplers[-1].means == samplers[0].means
    balance = replay(small_run.folder / "run" / "ledger.jsonl")
    assert balance.unsettled() == []


def test_prompts_in_flight_are_named_to_the_sampler(small_run, samplers):
    small_run(STEPS, AHEAD)

    assert samplers[0].requests[0].in_flight == frozenset()
    assert any(request.in_flight for request in samplers[0].requests)


class Wrong(Longest):
    def draw(self, request):
        return [] if request.step == 3 else super().draw(request)


def test_a_mistake_names_the_sampler_and_the_run_goes_on_where_it_was(small_run, samplers):
    broken = []

    def make(config):
        broken.append(Wrong(config) if not broken else Longest(config))
        return broken[-1]

    small_run(STEPS, output="whole")
    small_run.with_component("rlhf_prompt_samplers", Component(name="wrong", factory=make))
    wrong = {"data": {"sampler": "wrong"}}
    with pytest.raises(
        PluginError,
        match=r"^--data.sampler wrong \(small\): expected 2 prompts",
        check=has_code("plugin/number-of-prompts"),
    ):
        small_run(STEPS, wrong)
    assert small_run.checkpoints()[-1] == 2

    small_run(STEPS, wrong, AUTO)

    assert draws(small_run) == draws(small_run, "whole")


def test_another_sampler_cannot_take_over_a_checkpoint(small_run, samplers):
    small_run(STEPS, {"train": {"steps": 2}})

    with pytest.raises(
        ConfigError,
        match=r"--data.sampler is None, but .* with 'small:longest'",
        check=has_code("resume/option-changed"),
    ):
        small_run({"train": {"steps": 3}}, AUTO)


def test_a_state_that_cannot_be_taken_back_names_the_sampler(small_run, samplers):
    small_run(STEPS, {"train": {"steps": 2}})

    def fails(self, state):
        raise KeyError("means")

    Longest.load_state_dict, kept = fails, Longest.load_state_dict
    try:
        with pytest.raises(
            ResumeError,
            match=r"the prompt sampler small:longest \(small\) cannot",
            check=has_code("resume/state-refused"),
        ):
            small_run(STEPS, AUTO)
    finally:
        Longest.load_state_dict = kept
