"""Stops one thread of another process with ptrace, to simulate a hang."""
import ctypes
import os
import pathlib

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207


class StoppedThread:
    """Stops one thread of another process. The other threads continue."""

    def __init__(self, pid, name):
        tasks = pathlib.Path(f"/proc/{pid}/task")
        self.thread = next(int(task.name) for task in tasks.iterdir()
                           if (task / "comm").read_text().strip() == name)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long

    def call(self, request):
        assert self.libc.ptrace(request, self.thread, None, None) == 0, os.strerror(ctypes.get_errno())

    def __enter__(self):
        self.call(PTRACE_SEIZE)
        self.call(PTRACE_INTERRUPT)
        os.waitpid(self.thread, 0x40000000)  # __WALL; waits until it has stopped
        return self

    def __exit__(self, *exc):
        self.call(PTRACE_DETACH)
