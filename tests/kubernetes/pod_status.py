"""The status of a pod as a kubelet writes it, from the states of its containers: phase, conditions, container statuses. Pure.
The rules are those of pkg/kubelet/kubelet_pods.go (getPhase) and pkg/kubelet/status/generate.go of Kubernetes v1.32."""
import dataclasses
import datetime


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass
class ContainerState:
    """One container of a pod; `state` is the API's {"waiting"|"running"|"terminated": {...}}."""
    name: str
    image: str
    state: dict = dataclasses.field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: dict = dataclasses.field(default_factory=dict)
    restarts: int = 0
    started: bool = False
    ready: bool = False
    run_id: str = ""

    @property
    def running(self):
        return "running" in self.state

    @property
    def terminated(self):
        return self.state.get("terminated")

    def to_api(self):
        return {"name": self.name, "image": self.image, "imageID": f"tests://{self.image}", "containerID": self.run_id,
                "state": self.state, "lastState": self.last_state, "restartCount": self.restarts, "started": self.started,
                "ready": self.ready}


def phase_of(containers, restart_policy, terminal):
    """`terminal`: no container will be restarted, whatever the policy, because the pod is being deleted or failed."""
    waiting = sum("waiting" in one.state and "terminated" not in one.last_state for one in containers)
    running = sum(one.running for one in containers)
    stopped = len(containers) - waiting - running
    succeeded = sum(bool(one.terminated) and one.terminated["exitCode"] == 0 for one in containers)
    if waiting:
        return "Pending"
    if running:
        return "Running"
    if terminal or restart_policy == "Never":
        return "Succeeded" if stopped == succeeded else "Failed"
    if restart_policy == "OnFailure" and stopped == succeeded:
        return "Succeeded"
    return "Running"


def _condition(kind, status, reason="", message=""):
    return {"type": kind, "status": "True" if status else "False", "reason": reason, "message": message}


def conditions_of(containers, phase, has_network):
    """The conditions that a kubelet sets, without times."""
    if phase in ("Succeeded", "Failed"):
        reason, message = ("PodCompleted", "") if phase == "Succeeded" else ("PodFailed", "")
        ready = False
    else:
        unready = [one.name for one in containers if not one.ready]
        ready = not unready
        reason = "" if ready else "ContainersNotReady"
        message = "" if ready else f"containers with unready status: [{' '.join(unready)}]"
    return [_condition("PodReadyToStartContainers", has_network and phase not in ("Succeeded", "Failed")),
            _condition("Initialized", True, "PodCompleted" if phase == "Succeeded" else ""),
            _condition("Ready", ready, reason, message),
            _condition("ContainersReady", ready, reason, message),
            _condition("PodScheduled", True)]


class StatusBuilder:
    """Builds the status to send. The lastTransitionTime of a condition is kept until its status changes."""

    def __init__(self):
        self.since = {}
        self.start_time = now()

    def build(self, phase, containers, addresses, failure=None):
        """`addresses`: (pod, node), or None before the pod has one. `failure`: (reason, message) if the pod itself failed."""
        conditions = conditions_of(containers, phase, addresses is not None)
        for condition in conditions:
            if self.since.get(condition["type"], ("",))[0] != condition["status"]:
                self.since[condition["type"]] = (condition["status"], now())
            condition["lastTransitionTime"] = self.since[condition["type"]][1]
        status = {"phase": phase, "conditions": conditions, "startTime": self.start_time,
                  "containerStatuses": [one.to_api() for one in containers]}
        if addresses is not None:
            status.update(podIP=addresses[0], podIPs=[{"ip": addresses[0]}], hostIP=addresses[1], hostIPs=[{"ip": addresses[1]}])
        if failure is not None:
            status.update(reason=failure[0], message=failure[1])
        return status
