import socket
import subprocess
import sys

import pytest
from tests.deadlines import HANG_S, wait_until

from rlhf_guard.processes.program import GuardedProgram

pytestmark = pytest.mark.usefixtures("no_process_left")


def test_its_last_lines_are_kept_and_what_it_prints_never_stops_it():
    program = GuardedProgram([sys.executable, "-c", "print('x' * 10**6); print('last')"])

    wait_until(lambda: not program.alive)

    assert program.tail[-1] == "last"
    assert max(map(len, program.tail)) == 500
    program.stop()


def test_it_serves_a_socket_of_this_process():
    code = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).accept()[0].sendall(b'here')"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address, number = listening.getsockname(), listening.fileno()
        program = GuardedProgram([sys.executable, "-c", code, str(number)], descriptor=number)

    with socket.create_connection(address, HANG_S) as connection:
        assert connection.recv(4) == b"here"
    program.stop()


def test_stopping_ends_what_it_started_too(tmp_path):
    grandchild = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)"
    child = f"import subprocess, sys, time\n{grandchild}\nprint('up', flush=True)\ntime.sleep(1000)"
    program = GuardedProgram([sys.executable, "-c", child], folder=tmp_path)
    wait_until(lambda: program.tail)

    program.stop()

    assert not program.alive


def test_it_sees_no_secret_of_the_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    program = GuardedProgram(
        [sys.executable, "-c", "import os; print('WANDB_API_KEY' in os.environ)"]
    )

    wait_until(lambda: program.tail)

    assert program.tail == ("False",)
    program.stop()


def test_it_ends_with_the_process_that_started_it():
    code = (
        "import os, sys\nfrom rlhf_guard.processes.program import GuardedProgram\n"
        "GuardedProgram([sys.executable, '-c', 'import time; time.sleep(1000)'])\nos.kill(os.getpid(), 9)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9


def test_one_that_cannot_start_says_why_in_its_last_lines():
    program = GuardedProgram(["/no/such/program"])

    wait_until(lambda: not program.alive)

    assert "/no/such/program" in "\n".join(program.tail)
    program.stop()
