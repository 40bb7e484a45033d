"""The command `python -m tandem_rl.trackers` in processes of their own, forked from one that has imported what the command imports:
a new interpreter needs seconds for that each time. command_test.py starts it as a user does."""
import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

from written_run import environment

IMPORTS = {"wandb": ["wandb", "yaml"],
           "mlflow": ["mlflow", "mlflow.entities", "mlflow.store.tracking.file_store", "mlflow.store.tracking.sqlalchemy_store",
                      "sqlalchemy.dialects.sqlite", "yaml"]}
FORKS = multiprocessing.get_context("forkserver")
imported = []


def import_beforehand(service):
    """For a module of tests, before the first tracker starts."""
    imported.extend(IMPORTS[service])
    FORKS.set_forkserver_preload(imported)


def _main(arguments, env, folder, stderr):
    """Of a forked process: what a new interpreter would do."""
    atexit._clear()  # of the process that it was forked from
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    if isinstance(stderr, str):
        stderr = open(stderr, "a", encoding="utf-8")
    os.dup2(stderr.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from tandem_rl.trackers.__main__ import main
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    atexit._run_exitfuncs()  # which multiprocessing leaves out, and by which wandb ends its own process
    sys.exit(code)


class ForkedTracker:
    """As subprocess.Popen. What it says goes to a pipe, or behind what is in the file `stderr_to`."""

    def __init__(self, arguments, env, folder, stderr_to):
        self.stderr = None
        if stderr_to is None:
            said, stderr = FORKS.Pipe(duplex=False)
            self.stderr = os.fdopen(os.dup(said.fileno()), encoding="utf-8")
            said.close()
            self._begin(arguments, env, folder, stderr)
            stderr.close()
        else:
            self._begin(arguments, env, folder, str(stderr_to))

    def _begin(self, *what):
        self._process = FORKS.Process(target=_main, args=what)
        self._process.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.stderr is not None:
            self.stderr.close()
        self.wait()

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("the tracker", timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def start(*arguments, env=None, stderr_to=None, cwd="."):
    return ForkedTracker(list(map(str, arguments)), env or environment(), os.path.abspath(cwd), stderr_to)


def call(*arguments, timeout=120, **more):
    """(exit code, what it said)"""
    with start(*arguments, **more) as process:
        late = threading.Timer(timeout, process.kill)
        late.start()
        said = process.stderr.read()
        late.cancel()
        return process.wait(), said
