"""What a process and those below it listen at, the modes of files, and what docs/security.md promises of both."""

import os
import re
import stat
import sys
from ipaddress import ip_address
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/security.md"
ROW = re.compile(r"^\| (.+?) \| (.+?) \|(?: (.*?) \|)?$", re.MULTILINE)
LISTENS = "0A"
ACCEPTS = 0x10000
"""Bit of a Unix socket's flags, in hexadecimal, that says that it listens."""


def promised(heading, who):
    """The second cell of the row of a table of the page whose first cell has these words."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    (cell,) = [
        where for first, where, _ in ROW.findall(section.partition("\n## ")[0]) if who in first
    ]
    return cell


def processes(root):
    """A process and all below it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(words[1])
    found, level = {root}, {root}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def inodes(pids):
    """Inodes of the sockets that processes have open."""
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def address_of(text):
    """The address of an entry of /proc/net/tcp: words of four bytes in this machine's order."""
    packed = bytes.fromhex(text.partition(":")[0])
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    ordered = [word[::-1] if sys.byteorder == "little" else word for word in words]
    return str(ip_address(b"".join(ordered)))


def ports(root):
    """Addresses and ports of TCP at which a process and those below it listen."""
    own = inodes(processes(root))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and words[9] in own:
                found.add((address_of(words[1]), int(words[1].partition(":")[2], 16)))
    return found


def listening(root):
    """Addresses at which a process and those below it listen; of Unix sockets their paths."""
    own = inodes(processes(root))
    found = {address for address, _ in ports(root)}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & ACCEPTS and words[6] in own:
            found.add(words[7] if len(words) > 7 else "a Unix socket")
    return found


def modes(folder):
    """Mode of each file and folder that is directly in a folder, by its name."""
    return {entry.name: oct(stat.S_IMODE(entry.lstat().st_mode))[2:] for entry in folder.iterdir()}
