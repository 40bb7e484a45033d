"""Runs command lines of `tandem` in forks of one process that has loaded LibTorch (tests/support/forked_tandem.cc)."""
import functools
import os
import pathlib
import socket
import subprocess
import tempfile


@functools.cache
def forking_process():
    """The process and the socket to it. It ends when this process ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return subprocess.Popen([pathlib.Path(os.environ["TANDEM_BIN"]) / "forked_tandem"], stdin=theirs), ours


def forked_tandem(*arguments, text=None, cwd=None, env=None, timeout=120):
    """What subprocess.run returns of `tandem ARGUMENTS` with `text` as standard input. Two things differ: what libraries read
    from the environment when they are loaded is from the first call, and /proc has the command line of forked_tandem. A command
    that takes longer than `timeout` seconds is killed, and TimeoutError is raised. One thread at a time may call."""
    variables = [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
    words = (cwd or os.getcwd(), len(variables), *variables, *arguments)
    packet = "".join(f"{word}\0" for word in words).encode()
    process, other_end = forking_process()
    other_end.settimeout(timeout)
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        given.write(text or "")
        given.seek(0)
        socket.send_fds(other_end, [packet], [given.fileno(), out.fileno(), error.fileno()])
        try:
            code = other_end.recv(16)
        except TimeoutError:
            process.kill()
            forking_process.cache_clear()
            raise
        assert code, "forked_tandem ended"
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(arguments, int(code), out.read(), error.read())
