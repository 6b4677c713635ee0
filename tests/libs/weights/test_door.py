"""A door hands its file to processes of one user, and to nobody else."""

import os
import secrets
import sys

import pytest
from tests.deadlines import HANG_S
from tests.libs.weights.strangers import STRANGER, needs_root, stranger

from rlhf_weights.connections import ForeignConnection
from rlhf_weights.door import Door, has_ended, reach_door

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such sockets are Linux's")


@pytest.fixture
def number():
    return secrets.randbits(62)


@pytest.fixture
def file():
    made = os.memfd_create("test")
    yield made
    os.close(made)


@pytest.fixture
def door(number, file):
    made = Door(number, file)
    yield made
    made.close()


def test_who_knows_the_number_gets_the_file_and_sees_the_door_close(door, number, file):
    os.write(file, b"hello")

    got, line = reach_door(number, HANG_S)

    with line:
        assert os.pread(got, 5, 0) == b"hello"
        assert not os.get_inheritable(got)
        os.close(got)
        assert not has_ended(line)
        door.close()
        assert has_ended(line)


def test_a_door_that_nobody_opens_is_waited_for(number):
    with pytest.raises(TimeoutError, match=f"nobody opened meeting {number} within 0.1 s"):
        reach_door(number, 0.1)


def test_two_doors_cannot_have_one_number(door, number, file):
    with pytest.raises(OSError, match="in use"):
        Door(number, file)


def test_a_closed_door_can_be_opened_again(door, number, file):
    door.close()

    Door(number, file).close()


@needs_root
def test_another_user_gets_nothing(door, number):
    name = f"\\0rlhf-meeting-0-{number}"
    code = f"line = socket.socket(socket.AF_UNIX)\nline.connect('{name}')\nprint('ready', flush=True)\n"

    with stranger(code + "print(socket.recv_fds(line, 1, 1))") as process:
        assert process.stdout.readline() == "(b'', [], 0, None)\n"

    got, line = reach_door(number, HANG_S)
    os.close(got)
    line.close()


@needs_root
def test_the_door_of_another_user_is_refused(number):
    name = f"\\0rlhf-meeting-0-{number}"
    code = f"door = socket.socket(socket.AF_UNIX)\ndoor.bind('{name}')\ndoor.listen()\nprint('ready', flush=True)\n"

    with (
        stranger(code + "input()"),
        pytest.raises(ForeignConnection, match=f"user 0.*got one of user {STRANGER}"),
    ):
        reach_door(number, HANG_S)
