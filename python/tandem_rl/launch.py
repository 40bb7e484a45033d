"""Finds and starts the programs tandem, rollout_server and trainer (docs/python_client.md). Needs neither numpy nor grpcio, but for
RolloutServer.client. The console scripts of the package are exec_tandem and its neighbours."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .client import RolloutClient

PROGRAMS = ("tandem", "rollout_server", "trainer")
OWN_FOLDER = pathlib.Path(__file__).resolve().parent / "bin"
POLL_SECONDS = 0.05
NOT_FOUND = 127  # exit code, as a shell has it


class ProgramNotFound(FileNotFoundError):
    """A program is not on this machine. The message says where it was looked for and what to do."""


class ServerFailed(RuntimeError):
    """A rollout server did not start. The message ends with what it said."""


def _is_program(path: pathlib.Path) -> bool:
    """An executable file that is not a console script of this package, which would start itself."""
    if not path.is_file() or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        start = file.read(4096)
    return not (start.startswith(b"#!") and b"tandem_rl.launch" in start)


def find_binary(name: str) -> pathlib.Path:
    """The path of a program: in the directory $TANDEM_BIN if that is set, and there alone; else in tandem_rl/bin, for wheels that
    carry the programs; else on PATH. Raises ProgramNotFound, and ValueError for another name than the three."""
    if name not in PROGRAMS:
        raise ValueError(f"{name!r} is no program of Tandem: want {', '.join(PROGRAMS)}")
    chosen = os.environ.get("TANDEM_BIN")
    path_folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders = [chosen] if chosen else [str(OWN_FOLDER), *path_folders]
    for folder in folders:
        if _is_program(pathlib.Path(folder, name)):
            return pathlib.Path(folder, name).absolute()
    places = (f"the directory TANDEM_BIN={chosen}" if chosen
              else f"{OWN_FOLDER} and the {len(path_folders)} directories of PATH (TANDEM_BIN is not set)")
    raise ProgramNotFound(f"{name} is not in {places}: install the wheel for this platform, which has it, or build it with `make "
                          "build` in a checkout of Tandem and set TANDEM_BIN to its build/release/bin, or put that directory on PATH")


def setting_arguments(settings: Mapping[str, object]) -> list[str]:
    """--set KEY=VALUE for each setting; texts as they are, other values as JSON, which is YAML."""
    return [word for key, value in settings.items()
            for word in ("--set", f"{key}={value if isinstance(value, str | os.PathLike) else json.dumps(value)}")]


def run(config: str | os.PathLike[str], *, sets: Mapping[str, object] | None = None, arguments: Sequence[str] = (),
        check: bool = True) -> int:
    """`tandem run CONFIG --set KEY=VALUE ..`, with further `arguments` ("--resume"), and its output in the terminal. Returns the
    exit code. Raises subprocess.CalledProcessError for one that is not 0, if `check`. Ctrl-C reaches the run too, which saves a
    checkpoint and ends; KeyboardInterrupt is raised after it has ended."""
    command = [str(find_binary("tandem")), "run", os.fspath(config), *setting_arguments(sets or {}), *arguments]
    process = subprocess.Popen(command, env=_environment())
    interrupt: KeyboardInterrupt | None = None
    while process.returncode is None:
        try:
            process.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    if check and process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return process.returncode


class RolloutServer:
    """A rollout server as a child process. A context manager: entering starts it on a free port and waits until it serves, leaving
    ends it with SIGTERM, upon which it finishes what runs.

    model: Hugging Face directory, or a name on the Hub. dtype: "fp32" or "bf16". numerics: "fast", "invariant" or "exact". tls,
    token_file: as --tls and --token-file (docs/security.md). settings: options of a run file, {"server.max_queued_groups": 8}.
    arguments: further ones of `rollout_server`. environment: variables beside this process's."""

    def __init__(self, model: str | os.PathLike[str], *, dtype: str | None = None, numerics: str | None = None,
                 tls: str | os.PathLike[str] | None = None, token_file: str | os.PathLike[str] | None = None, host: str = "127.0.0.1",
                 settings: Mapping[str, object] | None = None, arguments: Sequence[str] = (),
                 environment: Mapping[str, str] | None = None, start_seconds: float = 600.0, stop_seconds: float = 120.0) -> None:
        flags = {"--dtype": dtype, "--numerics": numerics, "--tls": tls, "--token-file": token_file}
        self._command = [str(find_binary("rollout_server")), "--model", os.fspath(model), "--listen", f"{host}:0",
                         *(word for flag, value in flags.items() if value is not None for word in (flag, os.fspath(value))),
                         *setting_arguments(settings or {}), *arguments]
        self._host, self._environment = host, dict(environment or {})
        self._start_seconds, self._stop_seconds = start_seconds, stop_seconds
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""  # HOST:PORT once it serves

    @property
    def pid(self) -> int | None:
        """None before the start and after the end."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns when the server serves. Raises ServerFailed if it ends before, or takes longer than start_seconds."""
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-server-")
        port_file = pathlib.Path(self._folder.name, "port")
        with open(self._log_file(), "wb") as log:
            self._process = subprocess.Popen([*self._command, "--port-file", str(port_file)], stdout=log, stderr=subprocess.STDOUT,
                                             env={**os.environ, **self._environment})
        try:
            self.address = f"{self._host}:{self._port_in(port_file)}"
        except BaseException:
            self.stop()
            raise

    def client(self, **arguments: Any) -> RolloutClient:
        """A new client of this server, with the arguments of RolloutClient. Needs numpy and grpcio."""
        from .client import RolloutClient

        return RolloutClient(self.address, **arguments)

    def log(self) -> str:
        """What the server has said."""
        return self._log_file().read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if the server has not ended after stop_seconds. Nothing to do if it has ended."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                if not self._wait(self._stop_seconds):
                    self._process.kill()
                    self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> RolloutServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _port_in(self, port_file: pathlib.Path) -> int:
        """Waits until the server writes its port."""
        assert self._process is not None
        deadline = time.monotonic() + self._start_seconds
        while not (port_file.exists() and port_file.read_text().strip()):
            if self._wait(POLL_SECONDS):
                raise ServerFailed(f"rollout_server ended with exit code {self._process.returncode}:\n{self.log()[-4000:]}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"rollout_server does not serve after {self._start_seconds:g} s:\n{self.log()[-4000:]}")
        return int(port_file.read_text().strip().rpartition(":")[2])

    def _log_file(self) -> pathlib.Path:
        if self._folder is None:
            raise RuntimeError("the server is not running")
        return pathlib.Path(self._folder.name, "log")

    def _wait(self, seconds: float) -> bool:
        """True if the server has ended."""
        assert self._process is not None
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _environment() -> dict[str, str]:
    """This process's, in which programs start rewards and environments in this interpreter, for which this package is installed,
    unless $TANDEM_PYTHON says otherwise."""
    return {"TANDEM_PYTHON": sys.executable, **os.environ}


def _exec(name: str) -> NoReturn:
    """Becomes the program, with the arguments of this process."""
    try:
        path = find_binary(name)
    except ProgramNotFound as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_FOUND)
    os.execve(path, [str(path), *sys.argv[1:]], _environment())


def exec_tandem() -> NoReturn:
    _exec("tandem")


def exec_rollout_server() -> NoReturn:
    _exec("rollout_server")


def exec_trainer() -> NoReturn:
    _exec("trainer")
