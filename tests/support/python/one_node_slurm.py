"""A Slurm of one node on this machine, from the distribution's packages: a controller and a node on free ports,
without authentication, in a folder of its own. Needs root, as slurmd does. The node claims more CPUs than there may be,
memory that steps are charged for, and four GPUs (which are /dev/null and the like)."""
import os
import pathlib
import signal
import socket
import subprocess
import tempfile

from free_ports import free_ports
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
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=10
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000 Gres=gpu:4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
LAUNCHER_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
GPUS = "".join(f"Name=gpu File=/dev/{device}\n" for device in ("null", "zero", "full", "random"))


class OneNodeSlurm:
    """Use as a context manager; `run` calls one of Slurm's programs in it."""

    def __init__(self, folder, cpus=8):
        self.folder = pathlib.Path(folder)
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname().split(".")[0], folder=self.folder, cpus=cpus,
                                        ports=free_ports(2)), encoding="utf-8")
        (self.folder / "gres.conf").write_text(GPUS, encoding="utf-8")
        # What a batch system or a launcher sets around a test is not this cluster's.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("SLURM_") and name not in LAUNCHER_VARIABLES}
        self.environment.update(SLURM_CONF=str(config), PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        self.hastened = {}  # job id -> the restart of it that was
        self.daemons = [self._start("slurmctld", "-D", "-i"), self._start("slurmd", "-D")]
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T").stdout.strip() in ("idle", "mixed", "allocated"),
                   f"no node came up: {self.logs()}")

    def _start(self, *command):
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self, *command, **options):
        return subprocess.run(command, env={**self.environment, **options.pop("env", {})}, capture_output=True, text=True,
                              timeout=options.pop("timeout", 60), check=False, **options)

    def submit(self, script, *options, **keywords):
        """The id of the job."""
        done = self.run("sbatch", "--parsable", *options, str(script), **keywords)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number):
        """What Slurm knows of a job, by name: JobState, Restarts, ExitCode ..."""
        text = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def hasten(self, number):
        """Has a job that was queued again start in three seconds, and not in the two minutes after which no credential
        of its first start can be valid any more. (In the same second the node would still refuse the new one.)"""
        job = self.job(number)
        if job["JobState"] == "PENDING" and self.hastened.get(number, "0") != job["Restarts"]:
            self.hastened[number] = job["Restarts"]
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now+3")
        return job

    def wait_for(self, number, *states, seconds=240):
        """Until the job is in one of these states: what Slurm knows of it then."""
        seen = []

        def reached():
            seen.append(self.job(number) if "PENDING" in states else self.hasten(number))
            return seen[-1]["JobState"] in states
        wait_until(reached, f"job {number} is not {states}: {self.logs()}", seconds)
        return seen[-1]

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
                daemon.wait(timeout=120)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def main():
    """Starts the cluster for a shell beside it, until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has its background processes ignore the first
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, OneNodeSlurm(folder) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
