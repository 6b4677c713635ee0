"""NAME@REVISION of the Hub is the folder of one commit, for each option that names a model."""

import http.server
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from huggingface_hub import close_session, constants

from rlhf_config import Layer, pinned_models
from rlhf_config.pinned_models import pinned_folder
from rlhf_core.errors import ConfigError
from rlhf_data.tokenizer import load_tokenizer
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

OLD, NEW = "0" * 40, "1" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of downloaded files, which is empty, and no network."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    pinned_models._downloaded.cache_clear()
    yield folder
    pinned_models._downloaded.cache_clear()


@pytest.fixture
def downloaded(cache):
    """Two commits of ``some/model``: the tag v1, and a later one in the branch main."""
    model = cache / "models--some--model"
    for commit, width in ((OLD, 16), (NEW, 32)):
        write_tiny_model(model / "snapshots" / commit, hidden_size=width, num_layers=1, num_heads=2)
    (model / "refs" / "team").mkdir(parents=True)
    for name, commit in (("v1", OLD), ("main", NEW), ("team/branch", NEW)):
        (model / "refs" / name).write_text(commit)
    return model / "snapshots"


class Hub(http.server.BaseHTTPRequestHandler):
    """Enough of the Hub for one model: which commit a revision is, its files, and their bytes."""

    files: ClassVar = {}
    revisions: ClassVar = {}
    asked: ClassVar = []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(self.path)
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:4] == ["api", "models", "some", "model"] and parts[4] == "revision":
            commit = self.revisions.get(parts[5])
            if commit is None:
                return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self._answer(200, json.dumps({"id": "some/model", "sha": commit}).encode())
        if parts[:4] == ["api", "models", "some", "model"] and parts[4] == "tree":
            rows = [
                {"type": "file", "path": name, "size": len(data), "oid": f"{len(data):040d}"}
                for name, data in self.files.items()
            ]
            return self._answer(200, json.dumps(rows).encode())
        if parts[:3] == ["some", "model", "resolve"]:
            data = self.files[parts[4]]
            return self._answer(
                200, data, {"ETag": f'"{len(data):040d}"', "X-Repo-Commit": parts[3]}
            )
        return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _answer(self, status, data, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_): ...


@pytest.fixture
def hub(cache, tmp_path, monkeypatch):
    """A hub with the files of a tiny model, a pickle of its weights too, and a commit that has the tag v1."""
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    handler = type(
        "ThisHub",
        (Hub,),
        {"files": files | {"pytorch_model.bin": b"pickled"}, "revisions": {"v1": OLD}, "asked": []},
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close_session()
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()
    close_session()


@pytest.mark.parametrize(
    ("revision", "commit"), [("v1", OLD), ("main", NEW), ("team/branch", NEW), (OLD, OLD)]
)
def test_a_revision_is_the_folder_of_its_commit(downloaded, revision, commit):
    assert pinned_folder(f"some/model@{revision}") == str(downloaded / commit)


@pytest.mark.parametrize("name", ["some/model", "gpt2", "./out@v1", "/a/b@v1", "a/b/c@v1", ""])
def test_what_is_no_name_with_a_revision_stays_as_it_is(downloaded, name):
    assert pinned_folder(name) == name


def test_a_folder_with_such_a_name_stays_as_it_is(downloaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("some/model@v1")

    assert pinned_folder("some/model@v1") == "some/model@v1"


@pytest.mark.parametrize("name", ["some/model@v2", "nobody/nothing@main", "some/model@" + "2" * 40])
def test_what_was_not_downloaded_is_one_error_without_a_network(downloaded, name):
    with pytest.raises(ConfigError, match=name, check=has_code("model/no-such-revision")):
        pinned_folder(name)


def test_files_are_downloaded_without_pickles_and_only_once(hub, cache):
    folder = Path(pinned_folder("some/model@v1"))

    assert folder == cache / "models--some--model" / "snapshots" / OLD
    names = {path.name for path in folder.iterdir()}
    assert names == hub.files.keys() - {"pytorch_model.bin"}
    assert all((folder / name).read_bytes() == hub.files[name] for name in names)

    hub.asked.clear()
    assert pinned_folder("some/model@v1") == str(folder)
    assert not hub.asked


def test_a_revision_that_the_hub_has_not_is_one_error(hub):
    with pytest.raises(
        ConfigError, match="some/model@v2", check=has_code("model/no-such-revision")
    ):
        pinned_folder("some/model@v2")


@pytest.mark.parametrize(
    ("path", "beside"),
    [
        ("model.path", ()),
        ("model.tokenizer", ()),
        ("ref.path", ("--algo.kl.coef", "0.1")),
        ("critic.path", ("--estimator", "discounted")),
        ("algo.teacher.path", ("--loss", "follow")),
    ],
)
def test_each_option_of_a_model_takes_a_revision(resolved, downloaded, path, beside):
    section, _, name = path.rpartition(".")
    values = {name: "some/model@v1"}
    for key in reversed(section.split(".")):
        values = {key: values}
    without = {
        "model": {"path": "x"},
        "data": {"train": ["rows.jsonl"]},
        "reward": {"use": ["pattern"]},
    }

    found = resolved(*beside, files=(Layer.of(without), Layer.of(values)), enough=False)

    assert value_at(found.run, path) == value_at(found.tree, path) == str(downloaded / OLD)


def value_at(tree, path):
    for key in path.split("."):
        tree = tree[key] if isinstance(tree, Mapping) else getattr(tree, key)
    return tree


def test_a_tokenizer_of_a_revision_is_read_beside_options(downloaded):
    tokenizer = load_tokenizer("some/model@v1")

    assert tokenizer.name_or_path == str(downloaded / OLD)


def test_an_option_with_an_unknown_revision_is_named_with_the_code(resolved, downloaded):
    with pytest.raises(
        ConfigError, match=r"--ref\.path.*some/model@v9", check=has_code("model/no-such-revision")
    ):
        resolved("--ref.path", "some/model@v9", "--algo.kl.coef", "0.1")
