"""A server that is not there, or does not answer, ends no run and keeps no process alive."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cases import one_in
from tests.deadlines import HANG_S

ROOT = Path(__file__).parents[3]
LOCATION = {
    "wandb": "WANDB_BASE_URL",
    "trackio": "TRACKIO_SERVER_URL",
    "mlflow": "MLFLOW_TRACKING_URI",
}
"""Environment variable with the URL of a logger's server."""

RUN = """
import sys
from pathlib import Path
from tests.libs.trainer.loop.small_run import SmallRun
waits = {"to": [sys.argv[1]], "wait_s": 1.0, "wandb": {"start_s": 2.0}}
used = {name: option for name, option in waits.items() if name in ("to", "wait_s", *waits["to"])}
result = SmallRun(Path.cwd())({"log": used})
print("the run has", result.status)
"""


@pytest.fixture(params=["refuses", "is silent"])
def server(request):
    """The URL of a server that is not there, or of one that takes connections and says nothing."""
    taken = []

    def take():
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:  # closed
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if request.param == "refuses":
            listener.close()
        else:
            threading.Thread(target=take, daemon=True).start()
        yield url
        if request.param == "is silent":
            listener.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, LOCATION))
def test_a_run_ends_and_so_does_its_process(small_run, name, server):
    kept = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}
    keys = {"WANDB_API_KEY": "0" * 40, "TRACKIO_WRITE_TOKEN": "x"}

    done = subprocess.run(
        [sys.executable, "-c", RUN, name],
        cwd=small_run.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        env=kept | keys | {LOCATION[name]: server, "PYTHONPATH": str(ROOT)},
    )

    assert "the run has finished" in done.stdout, done.stderr
    assert done.returncode == 0
