"""A Slurm of one node on this machine, from the distribution's packages: a controller and a node on free ports,
without authentication, in a folder of its own. Needs root, as slurmd does."""
import os
import pathlib
import socket
import subprocess

from waiting import wait_until

CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class OneNodeSlurm:
    """Use as a context manager; `run` calls one of Slurm's programs in it."""

    def __init__(self, folder, cpus=2):
        self.folder = pathlib.Path(folder)
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname().split(".")[0], folder=self.folder, cpus=cpus,
                                        ports=free_ports(2)), encoding="utf-8")
        # What a batch system sets around a test is not this cluster's.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self.environment.update(SLURM_CONF=str(config), PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        self.daemons = [self._start("slurmctld", "-D", "-i"), self._start("slurmd", "-D")]
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T").stdout.strip() in ("idle", "mixed", "allocated"),
                   f"no node came up: {self.logs()}")

    def _start(self, *command):
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self, *command, **options):
        return subprocess.run(command, env={**self.environment, **options.pop("env", {})}, capture_output=True, text=True,
                              timeout=options.pop("timeout", 60), check=False, **options)

    def logs(self):
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.run("scancel", "--state=RUNNING", "--signal=KILL", "--user=root")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
