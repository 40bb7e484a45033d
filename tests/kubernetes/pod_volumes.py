"""The volumes of one pod as folders on this machine, with the layout and owners of a kubelet. ConfigMaps, Secrets and
projections are files behind a `..data` link, and one rename moves the link to new contents, so that a change is atomic."""
import os
import pathlib
import shutil

from pod_spec import ConfigError, quantity


class PodVolumes:
    """After `prepare`, `paths` has a folder for every volume. `client` is only for service account tokens."""

    def __init__(self, reader, folder, lookup, client):
        self.reader, self.folder, self.lookup, self.client = reader, pathlib.Path(folder), lookup, client
        self.pod = reader.pod
        self.group = (self.pod["spec"].get("securityContext") or {}).get("fsGroup")
        self.volumes = self.pod["spec"].get("volumes", [])
        self.paths, self.written = {}, {}
        self.tokens = {}

    def memory_volumes(self):
        """{path: bytes} of the emptyDirs that the sandbox has to mount; 0 means no limit."""
        return {str(self.folder / volume["name"]): int(quantity(volume["emptyDir"].get("sizeLimit", 0)))
                for volume in self.volumes if (volume.get("emptyDir") or {}).get("medium") == "Memory"}

    def prepare(self):
        """Throws ConfigError if an object does not exist (yet)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for volume in self.volumes:
            if volume["name"] not in self.paths:
                self.paths[volume["name"]] = self._make(volume)

    def refresh(self):
        """Writes changed ConfigMaps and Secrets again. Deleted ones are not changed."""
        for volume in self.volumes:
            if volume["name"] in self.written:
                try:
                    self._write(volume)
                except ConfigError:
                    pass

    def _make(self, volume):
        path = self.folder / volume["name"]
        if "emptyDir" in volume:
            if volume["emptyDir"].get("medium") not in (None, "", "Memory"):
                raise ConfigError("CreateContainerError", f"emptyDir medium {volume['emptyDir']['medium']}")
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
            self._give_to_group(path)
            return path
        if "persistentVolumeClaim" in volume:
            return self._claimed(volume["persistentVolumeClaim"]["claimName"])
        if "hostPath" in volume:
            return self._on_host(volume["hostPath"])
        path.mkdir(exist_ok=True)
        self._write(volume)
        return path

    def _claimed(self, claim_name):
        claim = self.lookup("PersistentVolumeClaim", claim_name)
        if claim is None or claim.get("status", {}).get("phase") != "Bound":
            raise ConfigError("ContainerCreating", f'persistentvolumeclaim "{claim_name}" is not bound')
        volume = self.lookup("PersistentVolume", claim["spec"]["volumeName"])
        source = volume["spec"].get("hostPath") or volume["spec"].get("local")
        if source is None:
            raise ConfigError("ContainerCreating", f"PersistentVolume {claim['spec']['volumeName']}: only hostPath and local")
        path = pathlib.Path(source["path"])
        path.mkdir(parents=True, exist_ok=True)
        self._give_to_group(path, deep=True)
        return path

    @staticmethod
    def _on_host(source):
        path, kind = pathlib.Path(source["path"]), source.get("type", "")
        if kind == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        elif kind == "FileOrCreate":
            path.touch()
        elif kind not in ("", "Directory", "File") or not path.exists():
            raise ConfigError("ContainerCreating", f"hostPath {path} ({kind or 'any type'}) is not there")
        return path

    def _give_to_group(self, path, deep=False):
        if self.group is None:
            return
        for one in [path, *(path.rglob("*") if deep else [])]:
            if not one.is_symlink():
                os.chown(one, -1, self.group)
                one.chmod(one.stat().st_mode | (0o2770 if one.is_dir() else 0o660))

    def _entries(self, source, default_mode):
        """(file name, bytes, mode) of one source of a configMap, secret, downwardAPI or projected volume."""
        if "serviceAccountToken" in source:
            spec = source["serviceAccountToken"]
            return [(spec["path"], self._token(spec), default_mode)]
        if "downwardAPI" in source:
            return [(item["path"], self.reader.field(item["fieldRef"]["fieldPath"]).encode(), item.get("mode", default_mode))
                    for item in source["downwardAPI"].get("items", [])]
        kind, spec = ("ConfigMap", source["configMap"]) if "configMap" in source else ("Secret", source["secret"])
        name = spec.get("name") or spec.get("secretName")
        try:
            data = self.reader.data_of(kind, name, spec.get("optional"))
        except ConfigError as error:
            raise ConfigError("ContainerCreating", f"MountVolume.SetUp failed: {error}") from error
        if data is None:
            return []
        if not spec.get("items"):
            return [(key, value, default_mode) for key, value in data.items()]
        missing = [item["key"] for item in spec["items"] if item["key"] not in data]
        if missing and not spec.get("optional"):
            raise ConfigError("ContainerCreating", f"{kind} {name} has no key {missing[0]}")
        return [(item["path"], data[item["key"]], item.get("mode", default_mode)) for item in spec["items"] if item["key"] in data]

    def _token(self, spec):
        """One token per volume path. It is kept, because tests end before tokens have to be renewed."""
        if spec["path"] not in self.tokens:
            meta, pod_spec = self.pod["metadata"], self.pod["spec"]
            answer = self.client.create(
                f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{pod_spec.get('serviceAccountName', 'default')}/token",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                 "spec": {"expirationSeconds": spec.get("expirationSeconds", 3600),
                          "audiences": [spec["audience"]] if spec.get("audience") else [],
                          "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}}})
            self.tokens[spec["path"]] = answer["status"]["token"].encode()
        return self.tokens[spec["path"]]

    def _write(self, volume):
        holder = volume.get("projected") or volume.get("configMap") or volume.get("secret") or volume.get("downwardAPI") or {}
        default_mode = holder.get("defaultMode", 0o644)
        entries = []
        for source in (volume["projected"]["sources"] if "projected" in volume else [volume]):
            entries += self._entries(source, default_mode)
        if self.written.get(volume["name"]) == entries:
            return
        base = self.folder / volume["name"]
        generation = len(list(base.glob("..data-*")))
        fresh = base / f"..data-{generation}-{os.urandom(3).hex()}"
        for name, data, mode in entries:
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode | (0o440 if self.group is not None else 0))
            if self.group is not None:
                os.chown(path, -1, self.group)
        fresh.mkdir(exist_ok=True)
        earlier = base / "..data"
        replaced = base / os.readlink(earlier) if earlier.is_symlink() else None
        link = base / "..data-next"
        link.symlink_to(fresh.name)
        link.rename(earlier)
        tops = {pathlib.PurePath(name).parts[0] for name, _, _ in entries}
        for top in tops:
            if not (base / top).is_symlink():
                (base / top).symlink_to(f"..data/{top}")
        for left in base.iterdir():
            if left.is_symlink() and not left.name.startswith("..data") and left.name not in tops:
                left.unlink()
        if replaced is not None:
            shutil.rmtree(replaced)
        self.written[volume["name"]] = entries

    def mounts(self, container):
        """The mounts of `container` in the form of the sandbox."""
        result = []
        for mount in container.get("volumeMounts", []):
            source = self.paths[mount["name"]]
            volume = next(volume for volume in self.volumes if volume["name"] == mount["name"])
            if mount.get("subPath"):
                source = source / mount["subPath"]
                if not source.exists():
                    source.mkdir(parents=True)
                    self._give_to_group(source)
                source = source.resolve()
            read_only = mount.get("readOnly", False) or any(kind in volume for kind in ("configMap", "secret", "projected",
                                                                                        "downwardAPI"))
            read_only = read_only or (volume.get("persistentVolumeClaim") or {}).get("readOnly", False)
            result.append({"source": str(source), "target": mount["mountPath"], "read_only": read_only})
        return result
