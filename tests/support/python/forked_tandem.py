"""Runs command lines of `tandem` in forks of one process that has loaded LibTorch (tests/support/forked_tandem.cc)."""
import functools
import os
import pathlib
import socket
import subprocess
import tempfile


@functools.cache
def other_end():
    """The socket to the process, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen([pathlib.Path(os.environ["TANDEM_BIN"]) / "forked_tandem"], stdin=theirs)
    return ours


def forked_tandem(*arguments, text=None, cwd=None, env=None):
    """What subprocess.run returns of `tandem ARGUMENTS` with `text` as standard input. What libraries read from the environment
    when they are loaded is from the first call, and the kernel knows the command line of forked_tandem alone."""
    variables = [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
    words = (cwd or os.getcwd(), len(variables), *variables, *arguments)
    packet = "".join(f"{word}\0" for word in words).encode()
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        given.write(text or "")
        given.seek(0)
        socket.send_fds(other_end(), [packet], [given.fileno(), out.fileno(), error.fileno()])
        code = other_end().recv(16)
        assert code, "forked_tandem ended"
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(arguments, int(code), out.read(), error.read())
