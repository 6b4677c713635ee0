"""Where a run goes on: the newest whole checkpoint, if records, books and options agree with it."""

import hashlib
import json
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from rlhf_core import ConfigError, ResumeError
from rlhf_core.storage.run_folder import RunFolder
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.resume import find_resume_point
from rlhf_trainer.loop.state import LoopState
from rlhf_trainer.loop.training import TRAINING

SAVED = {"checkpoint": {"every": 1, "keep": 3}}


@pytest.fixture
def run(small_run):
    """A run of three steps with a checkpoint of each; its folder."""
    small_run(SAVED)
    return small_run.folder / "run"


@pytest.fixture
def find(small_run):
    def of(checkpoint, *changes, output="run"):
        options = {"resume": {"checkpoint": checkpoint}}
        with small_run.configured(SAVED, options, *changes, output=output) as (resolved, _):
            return find_resume_point(
                resolved, RunFolder(Path(resolved.run.output)), TRAINING.resuming
            )

    return of


def step(run, number):
    return run / "checkpoints" / f"step-{number:08d}"


def test_a_run_that_is_not_resumed_begins_at_its_beginning(small_run, run):
    with small_run.configured(SAVED) as (resolved, _):
        assert find_resume_point(resolved, RunFolder(run), TRAINING.resuming) is None


def test_a_folder_without_checkpoints_begins_at_its_beginning(find):
    assert find("auto") is None


def test_the_newest_checkpoint_comes_with_the_beginnings_of_all_records(find, run):
    point = find("auto")

    assert (point.path, point.state.step) == (step(run, 3), 3)
    sizes = {name: (run / name).stat().st_size for name in point.records}
    assert {name: record.num_bytes for name, record in point.records.items()} == sizes
    assert sorted(sizes) == ["eval_samples.jsonl", "ledger.jsonl", "metrics.jsonl", "samples.jsonl"]
    assert point.damaged == ()


def test_a_damaged_checkpoint_is_passed_over(find, run, caplog):
    (step(run, 3) / "policy" / "updates.json").write_text("9")

    assert find("auto").state.step == 2
    assert "passed over a checkpoint" in caplog.text


def test_checkpoints_that_are_all_damaged_are_no_beginning(find, run):
    for number in (1, 2, 3):
        (step(run, number) / "state.json").unlink()

    with pytest.raises(ResumeError, match="--output", check=has_code("resume/all-damaged")):
        find("auto")


def test_a_named_checkpoint_is_taken_or_refused_but_never_replaced(find, run):
    assert find(str(step(run, 1))).state.step == 1
    (step(run, 2) / "state.json").unlink()

    with pytest.raises(
        ResumeError,
        match=r"step-00000002: state\.json",
        check=has_code("resume/unusable-checkpoint"),
    ):
        find(str(step(run, 2)))
    with pytest.raises(
        ResumeError, match="is not a checkpoint", check=has_code("resume/unusable-checkpoint")
    ):
        find(str(run / "nowhere"))


def test_a_checkpoint_of_another_run_begins_new_records(find, run):
    point = find(str(step(run, 2)), output="other")

    assert point.state.step == 2
    assert point.records == {}


def test_a_checkpoint_of_another_run_is_not_mixed_into_a_run(find, small_run, run):
    small_run(SAVED, output="other")

    with pytest.raises(ResumeError, check=has_code("output/two-runs")):
        find(str(step(run, 2)), output="other")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "--seed is 4, but the checkpoint"),
        ({"rollout": {"batch_size": 3}}, "--rollout.batch_size is 3"),
        ({"data": {"max_prompt_tokens": 17}}, "--data.max_prompt_tokens is 17"),
        ({"reward": {"shapers": ["clip"]}}, "--reward.shapers is ['algorithms:clip']"),
        ({"actor": {"optim": "sgd"}}, "--actor.optim is 'algorithms:sgd'"),
        # Rows that were held out would be trained on.
        ({"eval": {"fraction": 0.25}}, "--eval.fraction is 0.25"),
    ],
)
def test_an_option_that_the_state_depends_on_cannot_change(find, run, change, named):
    with pytest.raises(ConfigError) as caught:
        find("auto", change)

    assert named in str(caught.value)
    assert "was made with" in str(caught.value)
    assert "Set it back, or start a new run in another --output." in str(caught.value)


def test_other_options_may_change_and_it_is_said(find, run, caplog):
    point = find("auto", {"actor": {"max_norm": 0.5}, "train": {"steps": 9}})

    assert point.state.step == 3
    (message,) = caplog.messages
    assert message == (
        "resuming with changed options: actor.max_norm 1.0 -> 0.5, train.steps 3 -> 9"
    )


def test_a_component_whose_plugin_became_a_part_of_another_is_the_same(find, run, caplog):
    def as_before(state):
        state["config"]["actor"]["optim"] = "optim:adam"
        return state

    rewrite(step(run, 3), as_before)
    point = find("auto")

    assert point.path == step(run, 3)
    assert caplog.messages == []


def test_options_of_the_bookkeeping_change_without_a_word(find, run, caplog):
    find("auto", {"log": {"samples": 2}, "checkpoint": {"keep": 1}, "eval": {"max_samples": 5}})

    assert caplog.messages == []


def rewrite(folder, change):
    """Change what a checkpoint's state.json says, and its digest in the manifest."""
    file, manifest = folder / "state.json", folder / "manifest.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    listed = json.loads(manifest.read_text())
    listed["files"]["state.json"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(listed))


def cut(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))


def test_records_that_lost_lines_are_named_with_each_way_to_go_on(find, run):
    cut(run / "metrics.jsonl")

    with pytest.raises(ResumeError) as caught:
        find("auto")

    text = str(caught.value)
    assert "metrics.jsonl" in text
    assert "samples.jsonl" not in text
    assert f"--resume {step(run, 1)}   continues from" in text  # the first line is step 1's
    assert f"--resume {step(run, 3)} --resume.damaged_records set-aside" in text


def test_damaged_records_can_be_set_aside(find, run):
    cut(run / "samples.jsonl")

    point = find("auto", {"resume": {"damaged_records": "set-aside"}})

    assert point.damaged == ("samples.jsonl",)
    assert sorted(point.records) == ["eval_samples.jsonl", "ledger.jsonl", "metrics.jsonl"]


def test_books_that_do_not_balance_are_refused_with_the_group(find, run):
    rewrite(step(run, 3), lambda state: state | {"in_flight": [[0, 77]]})

    with pytest.raises(
        ResumeError, match=r"group 0\.77.*planned 0", check=has_code("resume/unusable-checkpoint")
    ):
        find("auto")


WRONG = ("text", 1.5, -1, True, None, [None], {"a": {"b": []}})


def test_a_value_of_another_type_is_an_error_by_name(find, run):
    """Each value by each wrong one: a resume point or one message, and never another exception."""
    path = step(run, 3)
    before = json.loads((path / "state.json").read_text())
    for name in (*(f.name for f in fields(LoopState)), "config", "made_with", "records"):
        told = []
        for wrong in WRONG:
            rewrite(path, lambda state, name=name, wrong=wrong: before | {name: wrong})
            with _taken_down(told):
                find(str(path))

        assert len(told) >= 4, (name, told)
        assert all(len(text) < 1000 for text in told)
        assert any(name in text for text in told), (name, told)


@contextmanager
def _taken_down(told):
    try:
        yield
    except (ResumeError, ConfigError) as error:
        told.append(str(error))


def test_a_checkpoint_lacks_a_value(find, run):
    rewrite(step(run, 3), lambda state: {k: v for k, v in state.items() if k != "records"})

    with pytest.raises(
        ResumeError,
        match=r"step-00000003/state\.json: 'records'",
        check=has_code("resume/unusable-checkpoint"),
    ):
        find("auto")
