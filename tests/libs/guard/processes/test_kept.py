"""A command under the keeper has pipes of the caller's own, and nothing of it outlives the process that started it."""

import os
import subprocess
import sys
import time

import pytest
from tests.deadlines import HANG_S

from rlhf_guard.processes.kept import end_kept, start_kept


@pytest.fixture
def started(tmp_path):
    """Start ``python -c CODE`` in a folder of its own, with the text as its input."""
    processes = []

    def start(*command, text="task"):
        folder = tmp_path / "work"
        folder.mkdir()
        (tmp_path / "task").write_text(text)
        with (tmp_path / "task").open("rb") as task:
            process = start_kept(command, task=task, folder=folder, variables={**os.environ})
        processes.append(process)
        return process

    yield start
    for process in processes:
        end_kept(process)
        process.stdout.close()
        process.stderr.close()


def test_input_output_errors_and_status_are_the_commands(started, tmp_path):
    code = "import os, sys; print(sys.stdin.read(), os.getcwd()); print('no', file=sys.stderr); sys.exit(7)"
    process = started(sys.executable, "-c", code, text="a task")

    assert process.stdout.read().decode().strip() == f"a task {tmp_path / 'work'}"
    assert process.stderr.read().decode().strip() == "no"
    assert process.wait(HANG_S) == 7
    assert not (tmp_path / "work").exists()


def test_a_program_that_is_not_there_is_an_error_of_the_caller(started):
    with pytest.raises(FileNotFoundError, match="there is no such program"):
        started("no-such-program")


def test_it_and_its_folder_end_with_a_process_that_is_killed(tmp_path):
    (tmp_path / "work").mkdir()
    nap = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep({HANG_S})"
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom rlhf_guard.processes.kept import start_kept\n"
        f"start_kept([sys.executable, '-c', {nap!r}], task=open('/dev/null', 'rb'), "
        f"folder=Path({str(tmp_path / 'work')!r}), variables=os.environ)\n"
        f"while not Path({str(tmp_path / 'pid')!r}).is_file() or not Path({str(tmp_path / 'pid')!r}).read_text():\n"
        "    time.sleep(0.01)\nos.kill(os.getpid(), 9)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9

    pid = int((tmp_path / "pid").read_text())
    give_up = time.monotonic() + HANG_S
    while os.path.exists(f"/proc/{pid}") or (tmp_path / "work").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
