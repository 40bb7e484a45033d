"""Runs a command in a separate network that loses packets. A TUN device returns packets to 10.9.0.2 as packets to 10.9.0.1 and
vice versa, and drops some of them. So TCP has real losses, without the kernel's netem.

    unshare -rn python lossy_network.py LOSS SEED COUNT_FILE -- COMMAND...

A server listens on 10.9.0.1 and is called at 10.9.0.2. COUNT_FILE gets "PACKETS LOST" at the end."""
import fcntl
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import threading

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x891C, 0x8913, 0x8914, 1


def bring_up(name, address=None):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        def call(request, *values):
            return fcntl.ioctl(control, request, struct.pack("16s" + values[0], name.encode(), *values[1:]))

        def inet(text):
            return ("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))

        if address:
            call(SIOCSIFADDR, *inet(address))
            call(SIOCSIFNETMASK, *inet("255.255.255.0"))
        call(SIOCSIFFLAGS, "H14x", IFF_UP)


def swap_addresses(packet):
    """Swaps source and destination of an IPv4 packet. Its checksums are sums over both, so they remain correct."""
    return packet[:12] + packet[16:20] + packet[12:16] + packet[20:]


def main():
    loss, seed, count_file = float(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    tunnel = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tunnel, TUNSETIFF, struct.pack("16sH22x", b"lossy", IFF_TUN | IFF_NO_PI))
    bring_up("lo")
    bring_up("lossy", "10.9.0.1")
    counts = [0, 0]
    draws = random.Random(seed)

    def forward():
        while True:
            packet = os.read(tunnel, 1 << 16)
            counts[0] += 1
            if draws.random() < loss:
                counts[1] += 1
            elif packet[0] >> 4 == 4:
                os.write(tunnel, swap_addresses(packet))

    threading.Thread(target=forward, daemon=True).start()
    code = subprocess.run(sys.argv[sys.argv.index("--") + 1:], check=False).returncode
    count_file.write_text(f"{counts[0]} {counts[1]}\n")
    sys.stdout.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
