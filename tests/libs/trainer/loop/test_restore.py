"""What cannot take its state back names itself, its plugin and the file."""

import asyncio

import pytest

from rlhf_core import CheckpointError, ResumeError, RolloutError
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.restore import check_epoch, restore_components, restore_roles
from rlhf_trainer.loop.resume import ResumePoint
from rlhf_trainer.loop.state import LoopState


class Role:
    def __init__(self, error=None):
        self.error = error
        self.loaded = []

    async def load(self, folder):
        self.loaded.append(folder)
        if self.error is not None:
            raise self.error


class Shaper:
    def __init__(self, error=None):
        self.error = error
        self.state = None

    def load_state_dict(self, state):
        if self.error is not None:
            raise self.error
        self.state = state


def test_other_numbers_of_prompts_or_of_given_responses_are_refused():
    state = LoopState()

    check_epoch(state, 8, 3)
    check_epoch(state, 8, 3)
    check_epoch(state, 8)  # a run whose loss reads no given responses any more
    assert (state.num_prompts, state.num_supervised) == (8, 3)
    for now, was in (((9, 3), "expected 8 prompts in an epoch"), ((8, 4), "expected 3 rows of su")):
        with pytest.raises(ResumeError, match=was, check=has_code("resume/data-changed")):
            check_epoch(state, *now)


def point(path, *, shapers=()):
    state = LoopState(shapers=list(shapers))
    return ResumePoint(path=path, state=state, made_with={}, records={})


def restore(folder, found, **roles):
    for name in ("policy", "critic"):
        (folder / name).mkdir()
    asyncio.run(restore_roles(point(folder), found, roles))


def test_each_role_gets_its_own_folder(resolved, tmp_path):
    roles = {name: Role() for name in ("policy", "critic")}

    restore(tmp_path, resolved(), **roles)

    loaded = {name: role.loaded for name, role in roles.items()}
    assert loaded == {"policy": [tmp_path / "policy"], "critic": [tmp_path / "critic"]}


def test_a_role_that_the_checkpoint_does_not_have_is_named(resolved, tmp_path):
    (tmp_path / "policy").mkdir()

    with pytest.raises(
        ResumeError,
        match="has no critic, which this run needs",
        check=has_code("resume/missing-state"),
    ):
        asyncio.run(
            restore_roles(point(tmp_path), resolved(), {"policy": Role(), "critic": Role()})
        )


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("policy", "the policy of sample:table (sample) with sample:momentum (sample)"),
        ("critic", "the critic of sample:table (sample) with sample:plain (sample)"),
    ],
)
def test_the_backend_and_the_roles_own_optimizer_are_named(resolved, tmp_path, name, who):
    with pytest.raises(ResumeError) as caught:
        restore(tmp_path, resolved("--optim", "momentum"), **{name: Role(KeyError("step"))})

    assert str(caught.value) == (
        f"{who} cannot take its state back from {tmp_path / name}: KeyError: 'step'. "
        "Install the version that the checkpoint was made with (plugins.json in the run folder has it)."
    )


def test_a_backend_that_says_what_is_wrong_is_quoted(resolved, tmp_path):
    with pytest.raises(
        ResumeError,
        match=r"cannot take its state back: cut off$",
        check=has_code("resume/state-refused"),
    ):
        restore(tmp_path, resolved(), policy=Role(CheckpointError("cut off")))


def test_a_rank_that_died_names_itself(resolved, tmp_path):
    with pytest.raises(RolloutError, match=r"^rank 3 died$", check=has_code("rollout/failed")):
        restore(tmp_path, resolved(), policy=Role(RolloutError("rank 3 died")))


def test_shapers_get_their_states_in_their_order(resolved, tmp_path):
    found = resolved("--reward.shapers", "bounds", "exploding")
    shapers = [Shaper(), Shaper()]

    restore_components(point(tmp_path, shapers=[{"a": 1}, {"b": 2}]), found, shapers=shapers)

    assert [shaper.state for shaper in shapers] == [{"a": 1}, {"b": 2}]


def test_a_shaper_that_cannot_take_its_state_back_is_named(resolved, tmp_path):
    found = resolved("--reward.shapers", "bounds", "exploding")
    shapers = [Shaper(), Shaper(ValueError("no mean"))]

    with pytest.raises(ResumeError) as caught:
        restore_components(point(tmp_path, shapers=[{}, {}]), found, shapers=shapers)

    assert str(caught.value).startswith("the reward shaper sample:exploding (sample) cannot take")
    assert f"from {tmp_path / 'state.json'}: ValueError: no mean" in str(caught.value)
