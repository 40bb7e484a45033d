"""Translates the spec of a pod for pod_sandbox.py: environment, command, identity, mounts. A field that is neither supported
nor listed in NOT_ENFORCED makes the pod fail with the name of the field, so that no test passes because a field was
ignored."""
import dataclasses
import re

# Fields without an effect that a test could see. `node_agent.NodeAgent.not_enforced` collects those that occurred.
NOT_ENFORCED = {
    "pod": {"runtimeClassName", "imagePullSecrets", "dnsPolicy", "enableServiceLinks"},
    "podSecurityContext": {"seccompProfile", "seLinuxOptions", "appArmorProfile", "fsGroupChangePolicy"},
    "container": {"resources"},  # the scheduler counts requests, but no cgroup enforces limits
    "securityContext": {"seccompProfile", "seLinuxOptions", "appArmorProfile", "procMount"},
}
# Fields that the agent or the control plane supports, and those that do not concern a node.
DONE = {
    "pod": {"containers", "volumes", "restartPolicy", "terminationGracePeriodSeconds", "securityContext", "nodeName", "hostname",
            "subdomain", "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "affinity", "nodeSelector",
            "tolerations", "topologySpreadConstraints", "priority", "priorityClassName", "preemptionPolicy",
            "activeDeadlineSeconds", "schedulingGates", "schedulerName"},
    "podSecurityContext": {"runAsUser", "runAsGroup", "runAsNonRoot", "fsGroup", "supplementalGroups"},
    "container": {"name", "image", "imagePullPolicy", "command", "args", "workingDir", "env", "envFrom", "ports", "volumeMounts",
                  "securityContext", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "terminationMessagePath",
                  "terminationMessagePolicy"},
    "securityContext": {"runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "allowPrivilegeEscalation",
                        "capabilities", "privileged"},
    "volume": {"name", "configMap", "secret", "emptyDir", "persistentVolumeClaim", "hostPath", "projected", "downwardAPI"},
    "volumeMount": {"name", "mountPath", "readOnly", "subPath"},
    "port": {"name", "containerPort", "protocol"},
    "probe": {"httpGet", "tcpSocket", "exec", "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold",
              "failureThreshold", "terminationGracePeriodSeconds"},
    "preStop": {"exec", "sleep", "httpGet"},
    "lifecycle": {"preStop"},
}
CAPABILITIES = ("CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
                "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT "
                "SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL "
                "SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF "
                "CHECKPOINT_RESTORE").split()
# The capabilities that container runtimes give by default.
DEFAULT_CAPABILITIES = set("CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT "
                           "MKNOD AUDIT_WRITE SETFCAP".split())
UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclasses.dataclass
class Image:
    """A container image: its programs by name (in /usr/local/bin), and the settings of its recipe."""
    programs: dict
    read_only_trees: tuple = ()
    user: int = 0
    group: int = 0
    workdir: str = "/"
    entrypoint: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)


class ConfigError(Exception):
    """The container cannot be created now. A kubelet sets `reason` in the container's waiting state and tries again."""

    def __init__(self, reason, message):
        self.reason = reason
        super().__init__(message)


def quantity(value):
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(value))
    if not match or match.group(2) not in UNITS:
        raise ConfigError("InvalidQuantity", f"quantity {value!r}")
    return float(match.group(1)) * UNITS[match.group(2)]


def unknown_fields(pod):
    """(unsupported fields: list of str, fields that are not enforced: set of str)."""
    cannot, not_enforced = [], set()

    def check(kind, thing, where):
        for field, value in (thing or {}).items():
            if field in NOT_ENFORCED.get(kind, ()):
                not_enforced.update({f"{kind}.{field}"} if value else ())
            elif field not in DONE[kind] and value not in (None, False, [], {}):
                cannot.append(f"{where}.{field}")

    spec = pod["spec"]
    check("pod", spec, "spec")
    check("podSecurityContext", spec.get("securityContext"), "spec.securityContext")
    for volume in spec.get("volumes", []):
        check("volume", volume, f"spec.volumes[{volume['name']}]")
    for container in spec["containers"]:
        where = f"spec.containers[{container['name']}]"
        check("container", container, where)
        check("securityContext", container.get("securityContext"), f"{where}.securityContext")
        if (container.get("securityContext") or {}).get("privileged"):
            cannot.append(f"{where}.securityContext.privileged")
        for mount in container.get("volumeMounts", []):
            check("volumeMount", mount, f"{where}.volumeMounts[{mount['name']}]")
        for port in container.get("ports", []):
            check("port", port, f"{where}.ports[{port['containerPort']}]")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            check("probe", container.get(probe), f"{where}.{probe}")
        check("lifecycle", container.get("lifecycle"), f"{where}.lifecycle")
        check("preStop", (container.get("lifecycle") or {}).get("preStop"), f"{where}.lifecycle.preStop")
    return cannot, not_enforced


class PodReader:
    """Reads the spec of one pod with the node's copies of ConfigMaps and Secrets. `lookup(kind, name)` is the object or None."""

    def __init__(self, pod, lookup, pod_ip, host_ip):
        self.pod, self.lookup, self.pod_ip, self.host_ip = pod, lookup, pod_ip, host_ip

    def field(self, path):
        meta, spec = self.pod["metadata"], self.pod["spec"]
        subscript = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        if subscript:
            return (meta.get(subscript.group(1)) or {}).get(subscript.group(2), "")
        values = {"metadata.name": meta["name"], "metadata.namespace": meta["namespace"], "metadata.uid": meta["uid"],
                  "spec.nodeName": spec["nodeName"], "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
                  "status.podIP": self.pod_ip, "status.podIPs": self.pod_ip, "status.hostIP": self.host_ip,
                  "status.hostIPs": self.host_ip}
        if path not in values:
            raise ConfigError("CreateContainerConfigError", f"fieldRef {path} is not one the fake node knows")
        return values[path]

    def resource(self, reference, container):
        kind, _, name = reference["resource"].partition(".")
        amounts = (container.get("resources") or {}).get(kind) or {}
        if name not in amounts:
            raise ConfigError("CreateContainerConfigError", f"resourceFieldRef {reference['resource']}: the container sets none")
        divisor = quantity(reference.get("divisor") or 1) or 1
        return str(int(-(-quantity(amounts[name]) // divisor)))

    def data_of(self, kind, name, optional=False):
        """The decoded entries of a ConfigMap or Secret as bytes, or None if it is optional and missing."""
        import base64
        thing = self.lookup(kind, name)
        if thing is None:
            if optional:
                return None
            raise ConfigError("CreateContainerConfigError", f'{kind.lower()} "{name}" not found')
        plain = kind == "ConfigMap"
        data = {key: value.encode() if plain else base64.b64decode(value) for key, value in (thing.get("data") or {}).items()}
        data.update({key: base64.b64decode(value) for key, value in (thing.get("binaryData") or {}).items()})
        return data

    def _value_from(self, source, container):
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            return self.resource(source["resourceFieldRef"], container)
        kind, reference = (("ConfigMap", source["configMapKeyRef"]) if "configMapKeyRef" in source
                           else ("Secret", source["secretKeyRef"]))
        data = self.data_of(kind, reference["name"], reference.get("optional")) or {}
        if reference["key"] in data:
            return data[reference["key"]].decode()
        if reference.get("optional"):
            return None
        raise ConfigError("CreateContainerConfigError", f"couldn't find key {reference['key']} in {kind} {reference['name']}")

    def environment(self, container, image):
        result = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/",
                  "HOSTNAME": hostname_of(self.pod), **image.environment}
        for source in container.get("envFrom", []):
            kind, reference = (("ConfigMap", source["configMapRef"]) if "configMapRef" in source
                               else ("Secret", source["secretRef"]))
            for key, value in (self.data_of(kind, reference["name"], reference.get("optional")) or {}).items():
                result[source.get("prefix", "") + key] = value.decode()
        for variable in container.get("env", []):
            value = (self._value_from(variable["valueFrom"], container) if "valueFrom" in variable
                     else expand(variable.get("value", ""), result))
            if value is not None:
                result[variable["name"]] = value
        return result

    def identity(self, container, image):
        """uid, gid, groups, capabilities (numbers), no_new_privileges."""
        pod_context = self.pod["spec"].get("securityContext") or {}
        context = {**pod_context, **(container.get("securityContext") or {})}
        uid = context.get("runAsUser", image.user)
        gid = context.get("runAsGroup", image.group if uid == image.user else 0)
        if context.get("runAsNonRoot") and uid == 0:
            raise ConfigError("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
        groups = [*pod_context.get("supplementalGroups", []), *([pod_context["fsGroup"]] if "fsGroup" in pod_context else [])]
        capabilities = set(DEFAULT_CAPABILITIES)
        asked = context.get("capabilities") or {}
        capabilities = set() if "ALL" in asked.get("drop", []) else capabilities - set(asked.get("drop", []))
        capabilities |= set(CAPABILITIES) if "ALL" in asked.get("add", []) else set(asked.get("add", []))
        unknown = capabilities - set(CAPABILITIES)
        if unknown:
            raise ConfigError("CreateContainerError", f"unknown capabilities {sorted(unknown)}")
        return {"uid": uid, "gid": gid, "groups": sorted({gid, *groups}),
                "capabilities": [CAPABILITIES.index(name) for name in sorted(capabilities)],
                "no_new_privileges": context.get("allowPrivilegeEscalation") is False}

    def command(self, container, image, environment):
        entrypoint = container.get("command") or list(image.entrypoint)
        argv = [expand(word, environment) for word in [*entrypoint, *container.get("args", [])]]
        if not argv:
            raise ConfigError("CreateContainerError", "no command specified: the image has no entrypoint")
        return argv


def hostname_of(pod):
    return pod["spec"].get("hostname") or pod["metadata"]["name"][:63]


def expand(text, variables):
    """Replaces $(NAME) by a variable that is already defined, and $$ by a dollar. Undefined names are not changed."""
    def one(match):
        if match.group(0) == "$$":
            return "$"
        return variables.get(match.group(1), match.group(0))
    return re.sub(r"\$\$|\$\(([A-Za-z_.\-][A-Za-z0-9_.\-]*)\)", one, text)
