"""Ports for programs that must be told their port. They are below the range from which the kernel picks ports for connections,
because such a port could be taken before the program listens, even by a connection to that program."""
import pathlib
import random
import socket

LEAST = 10000


def _is_free(port):
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_ports(count):
    """`count` neighbouring ports."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = low if low > LEAST + 1000 else 60000
    for _ in range(1000):
        first = random.randrange(LEAST, end - count)
        if all(map(_is_free, range(first, first + count))):
            return list(range(first, first + count))
    raise RuntimeError(f"no {count} neighbouring ports are free")


def free_port():
    return free_ports(1)[0]


def free_address():
    return f"127.0.0.1:{free_port()}"
