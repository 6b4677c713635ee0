"""Wait until a Ray cluster has as many nodes as it should; exit code 1 with the number that came when it is late."""

import argparse
import socket
import sys
import time

POLL_S = 2.0
CONNECT_S = 5.0


def alive(address: str) -> int:
    """Number of nodes that are alive; 0 while nobody answers at the address."""
    import ray

    host, _, port = address.rpartition(":")
    try:
        # Ray itself would try for minutes.
        socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError):
        return 0
    try:
        return sum(bool(node["Alive"]) for node in ray.nodes())
    finally:
        ray.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, help="HOST:PORT of the head")
    parser.add_argument("--nodes", type=int, required=True, help="how many there should be")
    parser.add_argument("--deadline-s", type=float, default=300.0)
    wanted = parser.parse_args()
    give_up = time.monotonic() + wanted.deadline_s
    while (found := alive(wanted.address)) < wanted.nodes:
        if time.monotonic() > give_up:
            print(
                f"{found} of {wanted.nodes} nodes joined the Ray cluster at {wanted.address} within "
                f"{wanted.deadline_s:g} s; the output above says what the others had to say",
                file=sys.stderr,
            )
            return 1
        time.sleep(POLL_S)
    print(f"{found} nodes are in the Ray cluster at {wanted.address}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
