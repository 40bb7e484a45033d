"""Waiting for another process: the one place where Python tests poll."""
import time


def wait_until(condition, what, seconds=240):
    """Returns when `condition()` holds; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
