"""A hub that cannot be reached is one error at once, or what was downloaded earlier."""

import shutil
import socket
import threading
from types import SimpleNamespace

import datasets
import huggingface_hub.utils._http as client
import pytest
from datasets import Dataset
from huggingface_hub import constants
from tests.deadlines import HANG_S

from rlhf_core.errors import ConfigError, DataError
from rlhf_data import hub
from rlhf_data.sources import open_source, reach_source
from rlhf_data.tokenizer import load_tokenizer
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model


@pytest.fixture
def listener(monkeypatch, tmp_path):
    """A socket in the place of the hub, which accepts connections and never answers; no request may be repeated."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(HANG_S)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        files = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        waits = SimpleNamespace(sleep=lambda seconds: pytest.fail("a request is repeated"))
        monkeypatch.setattr(client, "time", waits)
        caches = (hub._ask, hub._refuse_unknown)
        for kept in caches:
            kept.cache_clear()
        hub._failed.clear()
        client.close_session()
        yield server
    for kept in caches:
        kept.cache_clear()
    hub._failed.clear()
    client.close_session()


def test_a_name_that_cannot_be_downloaded_is_one_error_at_the_first_request(listener):
    listener.close()

    with pytest.raises(
        ConfigError, match="nobody/nothing", check=has_code("model/hub-unreachable")
    ):
        load_tokenizer("nobody/nothing")


def test_files_that_were_downloaded_earlier_are_read_without_a_request(listener, tmp_path, caplog):
    listener.close()
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    cached = tmp_path / "cache" / "models--some--model"
    shutil.copytree(tmp_path / "model", cached / "snapshots" / "0123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")

    tokenizer = load_tokenizer("some/model")

    assert tokenizer.get_vocab() == load_tokenizer(str(tmp_path / "model")).get_vocab()
    assert "files that were downloaded earlier are used" in caplog.text


def test_a_hub_that_never_answers_is_one_error_at_the_first_request(listener, monkeypatch):
    """A firewall that drops packets looks so; the client repeats each request five times."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)

    with pytest.raises(
        ConfigError, match="HF_HUB_ETAG_TIMEOUT", check=has_code("model/hub-unreachable")
    ):
        load_tokenizer("nobody/nothing")


def test_a_name_that_is_looked_up_forever_ends_with_the_patience(listener, monkeypatch):
    """The client's timeouts bound neither that nor a connection that tries one address after the other."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    forever = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: forever.wait(HANG_S) and [])

    with pytest.raises(ConfigError, check=has_code("model/hub-unreachable")):
        hub.reach_hub("nobody/nothing")
    forever.set()


def answering(listener, *answers):
    """Start a hub that gives each request the next answer; join the thread for its end.

    What the client asks for itself, once in a process (the names of programs that run it), is not counted.
    """

    def serve():
        waiting = list(answers)
        while waiting:
            connection, _ = listener.accept()
            with connection:
                asked = connection.recv(65536)
                answer = "404 Not Found" if b" /api/agent-harnesses " in asked else waiting.pop(0)
                # The client would send its next request on this connection, which ends here.
                ends = "Connection: close\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(f"HTTP/1.1 {answer}\r\n{ends}".encode())

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_hub_whose_answer_is_an_error_can_be_reached(listener):
    """What is wrong with it, the download says."""
    serving = answering(listener, "503 Busy", "503 Busy")

    hub.reach_hub("some/model")

    serving.join()
    assert not constants.HF_HUB_OFFLINE


def test_a_model_that_the_hub_has_not_is_one_error_before_its_files_are_read(listener):
    serving = answering(listener, "200 OK", "401 Unauthorized\r\nX-Error-Code: RepoNotFound")

    with pytest.raises(ConfigError, match="some/modell", check=has_code("model/not-on-hub")):
        hub.reach_hub("some/modell")
    serving.join()


def test_a_data_set_of_a_hub_that_never_answers_is_one_error(listener, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)

    with pytest.raises(
        DataError, match="HF_HUB_ETAG_TIMEOUT", check=has_code("data/hub-unreachable")
    ):
        open_source("some/set")


def test_folders_and_what_is_no_name_ask_nobody(listener, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_ask", lambda endpoint: pytest.fail("the hub is asked"))

    for name in (str(tmp_path), "../nowhere", "a/b/c"):
        hub.reach_hub(name)


def test_a_data_set_that_cannot_be_downloaded_is_one_error_at_the_first_request(listener, caplog):
    """The client repeats each request for half a minute, and a name of no file looks like one of the hub."""
    listener.close()

    with pytest.raises(
        DataError, match=r"^nothing: .*127\.0\.0\.1", check=has_code("data/hub-unreachable")
    ):
        open_source("nothing")

    assert not constants.HF_HUB_OFFLINE, "a notebook may have a network when it asks again"
    (line,) = (each.getMessage() for each in caplog.records)
    assert line == "nothing: no such file or folder is here, so the hub is asked for a data set"


def test_a_hub_that_did_not_answer_is_not_asked_again_at_once(listener, monkeypatch):
    """A run whose sets were downloaded earlier would wait for each of them."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    with pytest.raises(DataError, check=has_code("data/hub-unreachable")):
        reach_source("some/set")
    monkeypatch.setattr(hub, "_request", lambda endpoint: pytest.fail("the hub is asked"))

    with pytest.raises(DataError, check=has_code("data/hub-unreachable")):
        reach_source("other/set")

    monkeypatch.setattr(hub, "_FAILED_S", 0.0)
    asked = []
    monkeypatch.setattr(hub, "_request", asked.append)
    reach_source("other/set")
    assert asked == [constants.ENDPOINT]


def test_for_sets_of_this_machine_no_hub_is_asked(listener, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_ask", lambda endpoint: pytest.fail("the hub is asked"))

    for spec in (str(tmp_path), "absent.jsonl", "part-*.jsonl", "./absent", "no name"):
        reach_source(spec)


def test_a_data_set_that_was_downloaded_earlier_is_read_without_a_request(
    listener, datasets_cache, monkeypatch, caplog
):
    listener.close()
    kept = Dataset.from_dict({"prompt": ["a"]})
    asked = []

    def load(name, config, *, split):
        asked.append((name, config, split, constants.is_offline_mode()))
        return kept

    monkeypatch.setattr(datasets, "load_dataset", load)

    assert open_source("some/set:main").row(0) == {"prompt": "a"}
    assert asked == [("some/set", "main", "train", True)]
    assert "files that were downloaded earlier are used" in caplog.text
    assert not constants.HF_HUB_OFFLINE
