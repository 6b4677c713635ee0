"""``examples/notebook.ipynb`` from top to bottom, and the same training as in a script, in kernels of their own."""

import hashlib
import os
import queue
import re
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from rlhf_testing.tiny import write_tiny_model

pytest.importorskip("ipykernel", reason="the extra rlhf-cli[notebook] is not installed")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
# What ipykernel and its client leave to the garbage collector, or call by a name of yesterday, is theirs.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TRAINING = """
import rlhf

def vary(response):
    return sum(map(ord, response)) % 7

options = {
    "model": "model",
    "data": [{"prompt": f"{n:03d}="} for n in range(9)],
    "reward": vary,
    "rollout": {"batch_size": 3, "n_samples_per_prompt": 4, "max_new_tokens": 4},
    "data.max_prompt_tokens": 8,
    "actor.adam.lr": 1e-2,
}
"""


def weights_of(run):
    return hashlib.sha256((Path(run) / "model/model.safetensors").read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kernel(folder):
    """A started kernel and its client, in the folder."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=HANG_S, cwd=str(folder))
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def outputs_of(client, message, until=lambda content: False):
    """Contents of what a cell shows, up to its end or to the first that ``until`` accepts."""
    found = []
    give_up = time.monotonic() + HANG_S
    while time.monotonic() < give_up:
        try:
            reply = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if reply["parent_header"].get("msg_id") != message:
            continue
        content = reply["content"]
        if reply["msg_type"] == "error":
            raise AssertionError("\n".join(content["traceback"]))
        if content.get("execution_state") == "idle":
            return found
        found.append(content)
        if until(content):
            return found
    raise AssertionError("the cell did not end")


def test_the_notebook_of_the_examples_runs_from_top_to_bottom(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kept = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert [bool(outputs) for outputs in kept] == [False, False, *[True] * 6]
    assert set(re.findall(r"/(?:home|root|tmp|work)/\w+", str(kept))) == {"/tmp/notebook"}
    assert "'stderr'" not in str(kept)

    nbclient.NotebookClient(notebook, timeout=HANG_S, kernel_name="python3").execute(
        cwd=str(tmp_path)
    )

    shown = [str(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    trained, stepped = shown[3], shown[6]
    assert "<polyline" in trained
    assert "finished after 30 steps" in trained
    assert "('interrupted'" in stepped or "('finished', 30" in stepped
    assert float(notebook.cells[-1].outputs[-1]["data"]["text/plain"]) > 0.9, "it learns"


def test_a_kernel_trains_what_a_script_does(folder, kernel):
    _, client = kernel
    cell = (
        f"{TRAINING}\nresult = rlhf.train(output='cell', steps=3, **options)\nprint(result.status)"
    )

    shown = outputs_of(client, client.execute(cell))
    script = {}
    exec(
        compile(
            f"{TRAINING}\nresult = rlhf.train(output='script', steps=3, **options)", "<s>", "exec"
        ),
        script,
    )

    assert "finished" in str(shown)
    assert "<polyline" in str(shown), "progress is a picture"
    assert "step 1/3" not in str(shown), "and not the command line's text"
    assert weights_of("cell") == weights_of("script")


def test_the_kernels_interrupt_lets_the_step_end_and_saves(folder, kernel):
    manager, client = kernel
    cell = f"{TRAINING}\nresult = rlhf.train(output='cell', steps=100000, **options)"
    message = client.execute(cell)
    outputs_of(client, message, until=lambda content: "step 2 of" in str(content))

    manager.interrupt_kernel()
    outputs_of(client, message)
    shown = outputs_of(client, client.execute("print(result.status, result.message, result.steps)"))

    assert "interrupted stopped by SIGINT" in str(shown)
    checkpoints = os.listdir("cell/checkpoints")
    assert len(checkpoints) == 1
    (line,) = [content["text"] for content in shown if "text" in content]
    assert checkpoints[0].endswith(f"{int(line.split()[-1]):08d}")


def test_a_mistake_of_the_user_is_its_message_alone(kernel):
    _, client = kernel
    message = client.execute("import rlhf; rlhf.train(model='model', stepz=3)")

    shown = []
    deadline = time.monotonic() + HANG_S
    while not shown and time.monotonic() < deadline:
        try:
            reply = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if reply["parent_header"].get("msg_id") == message and reply["msg_type"] == "error":
            shown = reply["content"]["traceback"]

    assert shown == [
        "ConfigError: keyword stepz: there is no such option. Did you mean train.steps?",
        'In Python: **{"train.steps": ...}',
    ]
