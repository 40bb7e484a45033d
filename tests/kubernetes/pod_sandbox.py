"""The sandbox of one pod: a process that owns the pod's network, mount, IPC and host name namespaces and starts its containers
in them. pod_worker.py runs it as root and sends it commands.

The first line of stdin describes the pod, and later ones are commands. Events go to stdout. Each is a line with a JSON object:
  -> {"hostname", "folder", "shm_bytes", "memory_volumes": {path: bytes}}      <- {"ready": pid of the sandbox}
  -> {"start": container, ...container_root and identity, see `run_container`} <- {"started": container, "pid": pid}
                                              or {"failed": container, "message": why, "where": "create" or "start"}
  -> {"signal": container, "number": n}                                        <- {"exited": container, "code": n}
The program of a container is process 1 of a pid namespace, as with a container runtime, so signals without a handler have no
effect, except SIGKILL. The end of stdin ends the sandbox and everything in it, so nothing outlives the tests.

The root of a container is a tmpfs with the machine's /usr, the folders of "read_only_trees", and minimal /etc, /dev, /proc,
/sys and /tmp, as in a minimal image. Other files of the machine are not visible."""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import sys

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, LAST_CAPABILITY = 1, 24, 38, 40
SYS_MOUNT_SETATTR, AT_RECURSIVE, AT_FDCWD, MOUNT_ATTR_RDONLY = 442, 0x8000, -100, 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
COPIED_ETC = ("passwd", "group", "ld.so.cache", "localtime", "services", "protocols")
BOUND_ETC = ("ssl", "alternatives")

libc = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind=None, flags=0, data=None):
    def encode(text):
        return None if text is None else str(text).encode()
    checked(libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(data)),
            f"mount {source} on {target}")


def unshare(flags):
    checked(libc.unshare(flags), "unshare")


def make_read_only(path, recursive=True):
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    checked(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, str(path).encode(), AT_RECURSIVE if recursive else 0, attributes,
                         ctypes.c_size_t(len(attributes))), f"make {path} read-only")


def bind(source, target, read_only=False):
    """Mounts a file or folder, with all mounts inside it, on `target`, which is created."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.touch()
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def bring_loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", IFF_UP)
        import fcntl
        fcntl.ioctl(control, SIOCSIFFLAGS, request)


def make_etc(etc, folder, hostname):
    etc.mkdir()
    for name in COPIED_ETC:
        source = pathlib.Path("/etc", name)
        if source.exists():
            shutil.copyfile(source, etc / name)
    for name in BOUND_ETC:
        if pathlib.Path("/etc", name).is_dir():
            bind(f"/etc/{name}", etc / name, read_only=True)
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n")
    (etc / "host.conf").write_text("multi on\n")  # a name with several addresses in /etc/hosts has all of them
    (etc / "hostname").write_text(hostname + "\n")
    (etc / "resolv.conf").write_text("")
    # A folder, so that the agent can replace the hosts file atomically.
    bind(folder / "names", etc / ".pod", read_only=True)
    (etc / "hosts").symlink_to(".pod/hosts")


def make_dev(dev, folder):
    dev.mkdir()
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755,size=65536k")
    for name in DEVICES:
        bind(f"/dev/{name}", dev / name)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                         ("stderr", "/proc/self/fd/2")):
        (dev / name).symlink_to(target)
    bind(folder / "shm", dev / "shm")


def make_root(root, spec, folder, hostname):
    """Makes the complete root of a container at `root`, a mount of this namespace."""
    root.mkdir(exist_ok=True)
    mount("tmpfs", root, "tmpfs", 0, "mode=755")
    bind("/usr", root / "usr", read_only=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if pathlib.Path("/", name).is_symlink():
            (root / name).symlink_to(os.readlink(f"/{name}"))
        elif pathlib.Path("/", name).is_dir():
            bind(f"/{name}", root / name, read_only=True)
    mount("tmpfs", root / "usr/local/bin", "tmpfs", 0, "mode=755")
    for program, path in spec["programs"].items():
        (root / "usr/local/bin" / program).symlink_to(path)
    make_read_only(root / "usr/local/bin")
    make_etc(root / "etc", folder, hostname)
    make_dev(root / "dev", folder)
    # /root must be accessible, because a checkout may be in it.
    for name, mode in (("proc", 0o555), ("tmp", 0o1777), ("run", 0o755), ("var/tmp", 0o1777), ("root", 0o711)):
        (root / name).mkdir(parents=True)
        (root / name).chmod(mode)
    bind("/sys", root / "sys", read_only=True)
    # After the folders that may contain them, such as /tmp with a checkout.
    for tree in spec["read_only_trees"]:
        bind(tree, root / tree.lstrip("/"), read_only=True)
    (root / spec["cwd"].lstrip("/")).mkdir(parents=True, exist_ok=True)
    # Outer mount points come before inner ones, in any order of the pod's spec.
    for volume in sorted(spec["mounts"], key=lambda volume: volume["target"].count("/")):
        bind(volume["source"], root / volume["target"].lstrip("/"), volume["read_only"])
    if spec["read_only_root"]:
        make_read_only(root, recursive=False)


def enter(root):
    os.chdir(root)
    mount(".", "/", None, MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def take_identity(spec):
    for capability in range(LAST_CAPABILITY + 1):
        if capability not in spec["capabilities"]:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # the kernel may not have this one
    os.setgroups(spec["groups"])
    os.setgid(spec["gid"])
    os.setuid(spec["uid"])
    if spec["no_new_privileges"]:
        checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    # Set again, because changing the user cleared it. The program must not outlive the tests, even if they are killed.
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent death signal")


def become_program(spec):
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.setsid()
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # otherwise the program would inherit Python's settings
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    take_identity(spec)
    os.chdir(spec["cwd"])
    os.execvpe(spec["argv"][0], spec["argv"], spec["environment"])


def run_container(spec, folder, hostname, report):
    """Runs in a child of the sandbox: makes the container, reports it, waits for it and exits with its code."""
    where = "create"
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        unshare(CLONE_NEWNS | CLONE_NEWPID)
        root = folder / f"root-{spec['start']}"
        make_root(root, spec, folder, hostname)
        error_read, error_write = os.pipe()  # closed by a successful exec
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                enter(root)
                become_program(spec)
            except BaseException as error:  # noqa: BLE001: the parent must know about any error
                os.write(error_write, str(error).encode()[:4000])
            os._exit(128)
        os.close(error_write)
        where = "start"
        problem = os.read(error_read, 4096).decode(errors="replace")
        if problem:
            os.waitpid(child, 0)
            raise OSError(f"{spec['argv'][0]}: {problem}")
        os.write(report, json.dumps({"started": spec["start"], "pid": child}).encode() + b"\n")
        _, status = os.waitpid(child, 0)
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    except BaseException as error:  # noqa: BLE001
        os.write(report, json.dumps({"failed": spec["start"], "where": where, "message": str(error)}).encode() + b"\n")
        os._exit(128)


class Sandbox:
    def __init__(self, pod):
        self.folder, self.hostname = pathlib.Path(pod["folder"]), pod["hostname"]
        self.shims = {}  # pid of the waiting child -> container
        self.programs = {}  # container -> pid of its program
        unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        socket.sethostname(self.hostname)
        bring_loopback_up()
        mount("shm", self.folder / "shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={pod['shm_bytes']}")
        for path, size in pod["memory_volumes"].items():
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={size}" if size else "mode=1777")

    def start(self, spec):
        read, write = os.pipe()
        shim = os.fork()
        if shim == 0:
            os.close(read)
            run_container(spec, self.folder, self.hostname, write)
        os.close(write)
        with os.fdopen(read) as answers:
            event = json.loads(answers.readline() or '{"failed": "%s", "where": "create", "message": "killed"}' % spec["start"])
        if "started" in event:
            self.shims[shim] = spec["start"]
            self.programs[spec["start"]] = event["pid"]
        else:
            os.waitpid(shim, 0)
        self.say(event)

    def reap(self):
        for shim, container in list(self.shims.items()):
            pid, status = os.waitpid(shim, os.WNOHANG)
            if pid:
                del self.shims[shim], self.programs[container]
                self.say({"exited": container, "code": os.waitstatus_to_exitcode(status)})

    def command(self, command):
        if "start" in command:
            self.start(command)
        elif command["signal"] in self.programs:
            os.kill(self.programs[command["signal"]], command["number"])

    @staticmethod
    def say(event):
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def main():
    import selectors
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    commands = os.fdopen(0, "rb", buffering=0)
    sandbox = Sandbox(json.loads(commands.readline()))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    selector = selectors.DefaultSelector()
    selector.register(commands, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    sandbox.say({"ready": os.getpid()})
    while True:
        for key, _ in selector.select():
            if key.fd == wake_read:
                os.read(wake_read, 4096)
                sandbox.reap()
                continue
            line = commands.readline()
            if not line:
                return  # the agent is gone; the end of this process ends the children and their programs
            sandbox.command(json.loads(line))
            sandbox.reap()


if __name__ == "__main__":
    main()
