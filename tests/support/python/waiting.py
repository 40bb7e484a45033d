"""Waits for other processes. This is the only place where Python tests poll."""
import time


def wait_until(condition, what, seconds=240):
    """Returns when `condition()` is true, and fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
