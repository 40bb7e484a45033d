"""A Slurm of one node on this machine, from the packages of the distribution: a controller and a node on free ports, without
authentication, in a separate folder. Needs root, because slurmd does. The node may claim more CPUs than the machine has. It
also has memory that is assigned to steps, and four GPUs (/dev/null and similar devices)."""
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
    """Use it as a context manager. `run` calls a program of Slurm with its configuration."""

    def __init__(self, folder, cpus=8):
        self.folder = pathlib.Path(folder)
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname().split(".")[0], folder=self.folder, cpus=cpus,
                                        ports=free_ports(2)), encoding="utf-8")
        (self.folder / "gres.conf").write_text(GPUS, encoding="utf-8")
        # Without the variables that another batch system or launcher may have set for the test.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("SLURM_") and name not in LAUNCHER_VARIABLES}
        self.environment.update(SLURM_CONF=str(config), PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        self.hastened = {}  # job id -> the last restart whose start time was changed
        self.daemons = [self._start("slurmctld", "-D", "-i"), self._start("slurmd", "-D")]
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T").stdout.strip() in ("idle", "mixed", "allocated"),
                   f"no node came up: {self.logs()}")

    def _start(self, *command):
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self, *command, **options):
        return subprocess.run(command, env={**self.environment, **options.pop("env", {})}, capture_output=True, text=True,
                              timeout=options.pop("timeout", 60), check=False, **options)

    def submit(self, script, *options, **keywords):
        """Submits a job and returns its id."""
        done = self.run("sbatch", "--parsable", *options, str(script), **keywords)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number):
        """The properties of a job by name: JobState, Restarts, ExitCode ..."""
        text = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def hasten(self, number):
        """Makes a requeued job start in three seconds instead of two minutes, after which no credential of its first start is
        valid any more. (In the same second, the node would refuse the new credential.)"""
        job = self.job(number)
        if job["JobState"] == "PENDING" and self.hastened.get(number, "0") != job["Restarts"]:
            self.hastened[number] = job["Restarts"]
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now+3")
        return job

    def wait_for(self, number, *states, seconds=240):
        """Waits until the job is in one of these states, and returns its properties."""
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
    """Starts the cluster for use in another shell, until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # background processes of a shell ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, OneNodeSlurm(folder) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
