"""Which files of the source open a socket that listens: each has its row on the page about security."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("core", "cli", "libs", "plugins", "contrib")
OPENS = re.compile(
    r"\b(?:create_server|start_server|start_unix_server|TCPStore|\w*HTTPServer|bind_unix_socket)\(|uvicorn\.(?:Config|run)\("
    r"|(?:socket|listener|listening)\.(?:bind|listen)\(|\binit_process_group\(|\bcreate_device\(|\bray\.init\(|\"--fd\""
)
ROWS = {
    "rlhf_guard/environments/listening.py": "`rlhf env serve`",
    "rlhf_torch/ranks/ranks.py": "ranks of one machine",
    "rlhf_weights/door.py": "weight links",
    "rlhf_weights/group.py": "weight links",
    "rlhf_weights/local_gloo.py": "weight links",
    "rlhf_weights/store.py": "weight links",
    "rlhf_plugin_endpoint/web/server.py": "executor `endpoint`",
    "rlhf_plugin_lab/serving.py": "`rlhf view`",
    "rlhf_plugin_ray/cluster/cluster.py": "a cluster of Ray",
    "rlhf_plugin_ray/processes/process.py": "ranks of one machine",
    "rlhf_plugin_reward_model/serving/command.py": "`rlhf serve-rm`",
    "rlhf_bridge_nemo_gym/relay.py": "the bridge `nemo_gym`",
    "rlhf_bridge_openenv/servers.py": "servers of OpenEnv that a run starts from `app`",
}
"""File -> words of the first cell of its row."""
NO_COMMAND = {"rlhf_plugin_endpoint/conformance/upstream.py"}
"""Files that only checks of a plugin use: 127.0.0.1, while the check runs."""


def test_each_file_that_listens_has_a_row_of_the_page():
    found = {
        str(file.relative_to(ROOT)).partition("src/")[2]
        for folder in SOURCES
        for file in (ROOT / folder).rglob("src/**/*.py")
        if OPENS.search(file.read_text("utf-8"))
    }
    page = (ROOT / "docs/security.md").read_text("utf-8")
    first_cells = re.findall(r"^\| (.+?) \|", page, re.MULTILINE)

    assert found == ROWS.keys() | NO_COMMAND
    for row in ROWS.values():
        assert any(row in cell for cell in first_cells), row


def test_another_way_to_listen_would_be_found():
    for line in (
        "await asyncio.start_server(f, host, port)",
        "server = await loop.create_server(make, '127.0.0.1', 0)",
        "socket.create_server((host, port))",
        "uvicorn.run(app)",
        "self._socket.bind(('', 0))",
        "dist.TCPStore(host, port)",
        "dist.ProcessGroupGloo.create_device(hostname=host)",
    ):
        assert OPENS.search(line), line
    assert not OPENS.search("signature.bind(*arguments)")
