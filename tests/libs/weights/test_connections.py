"""Users at the far ends of connections are those of the kernel's table; its rows here were written by hand."""

import os
import socket

import pytest

from rlhf_weights.connections import (
    ESTABLISHED,
    TABLES,
    connections,
    far_users,
    own_sockets,
    read_tables,
)

HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
HERE = "0100007F"
MAPPED = "0000000000000000FFFF00000100007F"
"""127.0.0.1 as a socket of IPv6 has it."""


def row(near, far, state=ESTABLISHED, user=1000, inode=1):
    return f"   3: {near} {far} {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 {inode} 1 0000000a 20 4"


def ends(*rows, sockets=(11,), ports=(0x1F90,)):
    found = far_users(connections("\n".join([HEADING, *rows])), set(sockets), set(ports))
    return {(near[1], far[1]): user for (near, far), user in found.items()}


def test_the_far_end_of_a_connection_is_the_row_with_swapped_addresses():
    mine = row(f"{HERE}:1F90", f"{HERE}:C001", user=1000, inode=11)
    other = row(f"{HERE}:C001", f"{HERE}:1F90", user=65534, inode=12)

    assert ends(mine, other) == {(0x1F90, 0xC001): 65534}


def test_an_end_may_be_a_socket_of_the_other_family():
    mine = row(f"{HERE}:1F90", f"{HERE}:C001", inode=11)

    assert ends(mine, row(f"{MAPPED}:C001", f"{MAPPED}:1F90", user=7, inode=12)) == {
        (0x1F90, 0xC001): 7
    }


def test_a_connection_that_this_process_has_made_counts_as_well():
    mine = row(f"{HERE}:C001", f"{HERE}:1F90", inode=11)
    other = row(f"{HERE}:1F90", f"{HERE}:C001", user=7, inode=12)

    assert ends(mine, other) == {(0xC001, 0x1F90): 7}


@pytest.mark.parametrize(
    "far_row",
    [
        "",
        # No process has it: closed, or not accepted yet. The kernel then gives 0 as its user, who would be root.
        row(f"{HERE}:C001", f"{HERE}:1F90", user=0, inode=0),
    ],
)
def test_an_end_of_no_process_has_no_user(far_row):
    assert ends(row(f"{HERE}:1F90", f"{HERE}:C001", inode=11), far_row) == {(0x1F90, 0xC001): None}


def test_other_processes_other_ports_and_sockets_that_listen_are_left_out():
    assert (
        ends(
            row(f"{HERE}:1F90", f"{HERE}:C001", inode=99),
            row(f"{HERE}:1F91", f"{HERE}:C001", inode=11),
            row(f"{HERE}:1F90", "00000000:0000", state="0A", inode=11),
        )
        == {}
    )


@pytest.mark.skipif(not TABLES[0].exists(), reason="this system has no such table")
def test_the_kernels_table_has_this_process_at_both_ends_of_its_own_connection():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), listening.accept()[0]:
            own = own_sockets()
            found = far_users(connections(read_tables()), own.keys(), {port})

            assert len(found) == 2
            assert set(found.values()) == {os.geteuid()}
            assert listening.fileno() in own.values()
