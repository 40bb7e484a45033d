"""The TCP ports on which a process and its children listen, according to the kernel (/proc), so that none is missed."""
import pathlib
import socket
import struct

LISTEN = "0A"


def _sockets(pid):
    found = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # it was closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:["):-1])
    return found


def _address(text, family):
    host, port = text.split(":")
    words = struct.pack(f"={len(host) // 8}I", *(int(host[i:i + 8], 16) for i in range(0, len(host), 8)))
    # gRPC opens IPv4 ports with IPv6 sockets.
    host = socket.inet_ntop(family, words).removeprefix("::ffff:")
    return f"{host}:{int(port, 16)}"


def _listening_of(pid):
    own = _sockets(pid)
    addresses = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in own:
                addresses.append(_address(fields[1], family))
    return sorted(addresses)


def _children(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def listening(pid):
    """[(name of the program, its addresses)] of `pid` and its descendants."""
    found = [(pathlib.Path(f"/proc/{pid}/exe").resolve().name, _listening_of(pid))]
    for child in _children(pid):
        found += listening(child)
    return found
