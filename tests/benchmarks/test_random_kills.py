"""``benchmarks/random_kills.py`` ends when it is told to, with all that it has started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marked_processes import marked
from tests.deadlines import HANG_S, wait_until

BENCHMARK = """
import sys
import random_kills
random_kills.write_workspace = lambda folder: None
sys.exit(random_kills.main())
"""
RUN = """
import os, subprocess, sys, tempfile, time
if "-child" not in sys.argv:
    subprocess.Popen([sys.executable, __file__, "-child"], start_new_session=True)
open(f"started{os.getpid()}-{tempfile.gettempdir().replace('/', '+')}", "w").close()
time.sleep(1000)
"""
"""A run with a child that outlives it, both of which never end."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_the_background_with_what_it_started_and_the_table_so_far(
    tmp_path, number
):
    (tmp_path / "rlhf_cli").mkdir()
    (tmp_path / "rlhf_cli/__init__.py").touch()
    (tmp_path / "rlhf_cli/__main__.py").write_text(RUN)
    words = [sys.executable, "-c", BENCHMARK, "--kinds", "sft,dpo", "--folder", str(tmp_path)]
    benchmark = subprocess.Popen(
        words,
        cwd=Path(__file__).parents[2] / "benchmarks",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell starts what goes on in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        files = wait_until(lambda: (found := list(tmp_path.glob("started*")))[1:] and found)
        temporary = files[0].name.partition("-")[2].replace("+", "/")
        assert len(marked("TMPDIR", temporary)) == 2
        os.kill(benchmark.pid, number)
        out, said = benchmark.communicate(timeout=HANG_S)
    finally:
        benchmark.kill()
        benchmark.wait()

    assert benchmark.returncode == 128 + number
    assert f"ended by {number.name}" in said
    assert out.splitlines()[0].startswith("seed 0, 0 kills")
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["kind", "sft", "dpo"]
    assert marked("TMPDIR", temporary) == []
    assert not Path(temporary).exists()
