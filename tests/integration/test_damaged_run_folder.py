"""Random damage to any file of a killed run's folder: it goes on to the same numbers, or is refused in one message."""

import json
import os
import random
import shutil

import pytest
from tests.cases import one_in

from rlhf_trainer.durable.records import replay

from .forked_runs import metrics_without_times, train_in_a_fork, weights_digest, write_workspace

pytestmark = pytest.mark.slow

SHORT = ["--train.steps", "6", "--checkpoint.every", "2"]
QUICK_SEEDS = 2
SLOW_SEEDS = 30
OTHER_FORMS = ["[]", "{}", "null", "3", '"text"', '{"schema": 2}', '{"step": "x"}\n{"step": []}\n']


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """``whole`` was left alone; ``killed`` ended in its sixth step, with checkpoints of steps 2 and 4."""
    folder = write_workspace(tmp_path_factory.mktemp("damaged"))
    assert train_in_a_fork(folder, "whole", *SHORT) == 0
    assert os.WIFSIGNALED(train_in_a_fork(folder, "killed", *SHORT, fault="train:6"))
    names = sorted(path.name for path in (folder / "killed" / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000004"]
    return folder


def truncate(path, rng):
    os.truncate(path, rng.randrange(max(1, path.stat().st_size)))


def flip_a_byte(path, rng):
    content = bytearray(path.read_bytes() or b" ")
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def delete(path, rng):
    path.unlink()


def replace_by_another_form(path, rng):
    path.write_text(rng.choice(OTHER_FORMS))


def insert_lines(path, rng):
    lines = path.read_bytes().splitlines(keepends=True)
    at = rng.randrange(len(lines) + 1)
    lines[at:at] = [rng.choice([b"{broken\n", b"\xff\xfe\n", *lines[:1]])] * rng.randint(1, 3)
    path.write_bytes(b"".join(lines))


def drop_a_line(path, rng):
    lines = path.read_bytes().splitlines(keepends=True) or [b""]
    del lines[rng.randrange(len(lines))]
    path.write_bytes(b"".join(lines))


def make_a_folder(path, rng):
    path.unlink()
    path.mkdir()


def make_a_fifo(path, rng):
    path.unlink()
    os.mkfifo(path)


MUTATIONS = [
    truncate,
    flip_a_byte,
    delete,
    replace_by_another_form,
    insert_lines,
    drop_a_line,
    make_a_folder,
    make_a_fifo,
]


def files_of(run):
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")


def check_damaged(workspace, mutation, seed):
    """Damage one file of a copy of the killed run, resume, and compare with the run that was left alone."""
    rng = random.Random(f"{mutation.__name__} {seed}")
    name = f"{mutation.__name__}-{seed}"
    run = workspace / name
    shutil.copytree(workspace / "killed", run)
    # Each seed takes another kind of file: records and headers first, since checkpoints have more files.
    files = files_of(run)
    top = [path for path in files if path.parent == run]
    victim = rng.choice(top if seed % 2 else files)
    mutation(victim, rng)
    what = f"{mutation.__name__} of {victim.relative_to(run)}"

    status = train_in_a_fork(workspace, name, *SHORT, "--resume", "auto")

    told = (workspace / f"{name}.log").read_text()
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 2), (what, told)
    assert "Traceback" not in told, (what, told)
    if code == 2:
        assert sum(line.startswith("error: ") for line in told.splitlines()) == 1, (what, told)
    else:
        whole = workspace / "whole"
        assert metrics_without_times(run) == metrics_without_times(whole), what
        assert (run / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text(), what
        assert weights_digest(run) == weights_digest(whole), what
        assert replay(run / "ledger.jsonl").unsettled() == [], what
    shutil.rmtree(run)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_damaged_folder_goes_on_exactly_or_is_refused(workspace, mutation):
    for seed in range(QUICK_SEEDS):
        check_damaged(workspace, mutation, seed)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", one_in(8, MUTATIONS), ids=lambda mutation: mutation.__name__)
def test_much_damage_goes_on_exactly_or_is_refused(workspace, mutation):
    for seed in range(QUICK_SEEDS, SLOW_SEEDS):
        check_damaged(workspace, mutation, seed)


@pytest.fixture
def damaged(workspace, request):
    """A copy of the killed run in which a line of ``metrics.jsonl`` that step 2's checkpoint knows not has changed."""
    run = workspace / request.node.name
    shutil.copytree(workspace / "killed", run)
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if json.loads(line)["step"] == 3)
    lines[at] = lines[at].replace('"step"', '"STEP"')
    path.write_text("".join(lines))
    return run


def resume(workspace, run, *flags):
    status = train_in_a_fork(workspace, run.name, *SHORT, *flags)
    return os.waitstatus_to_exitcode(status), (workspace / f"{run.name}.log").read_text()


def test_changed_records_are_named_with_the_ways_to_go_on(workspace, damaged):
    code, told = resume(workspace, damaged, "--resume", "auto")

    older = f"{damaged.name}/checkpoints/step-00000002"
    newer = f"{damaged.name}/checkpoints/step-00000004"
    assert code == 2
    assert "metrics.jsonl has changed within its first" in told
    assert f"--resume {older}   continues from" in told
    assert f"--resume {newer} --resume.damaged_records set-aside" in told


def test_an_older_checkpoint_goes_on_exactly_and_newer_ones_do_not_come_back(workspace, damaged):
    older = f"{damaged.name}/checkpoints/step-00000002"
    killed = train_in_a_fork(workspace, damaged.name, *SHORT, "--resume", older, fault="train:4")
    assert os.WIFSIGNALED(killed)
    code, told = resume(workspace, damaged, "--resume", "auto")

    assert code == 0, told
    assert metrics_without_times(damaged) == metrics_without_times(workspace / "whole")
    assert weights_digest(damaged) == weights_digest(workspace / "whole")
    assert replay(damaged / "ledger.jsonl").unsettled() == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl"])
def test_damaged_records_can_be_set_aside(workspace, damaged, name):
    (damaged / name).write_text("lost\n")
    flags = ["--resume", "auto", "--resume.damaged_records", "set-aside"]
    killed = train_in_a_fork(workspace, damaged.name, *SHORT, *flags, fault="train:6")
    assert os.WIFSIGNALED(killed)
    assert (damaged / f"{name}.damaged").read_text() == "lost\n"
    code, told = resume(workspace, damaged, *flags)

    assert code == 0, told
    assert weights_digest(damaged) == weights_digest(workspace / "whole")
    steps = [line["step"] for line in metrics_without_times(damaged) if "metrics" in line]
    assert steps == [5, 6]


def test_checkpoints_that_are_all_damaged_are_refused(workspace, damaged):
    for folder in (damaged / "checkpoints").iterdir():
        (folder / "manifest.json").write_text("{}")
    before = (damaged / "metrics.jsonl").read_text()

    code, told = resume(workspace, damaged, "--resume", "auto")

    assert code == 2
    assert "all are damaged" in told
    assert (damaged / "metrics.jsonl").read_text() == before


def test_another_runs_checkpoint_is_not_mixed_into_a_run(workspace, damaged):
    code, told = resume(workspace, damaged, "--resume", "whole/checkpoints/step-00000004")

    assert code == 2
    assert "a run is there already, and whole/checkpoints/step-00000004 is another run's" in told
