"""A provisioner of PersistentVolumes for the tests: every claim of its classes becomes a folder on this machine that all nodes
share (ReadWriteMany works). kube-controller-manager binds the claims."""
import pathlib

from api_client import ApiError, Watched

PROVISIONER = "tests.tandem/local-folder"


class LocalStorage:
    """Creates the storage classes `class_names`, of which the first is the default, and serves their claims from `folder`."""

    def __init__(self, client, folder, class_names=("standard",)):
        self.client, self.folder = client, pathlib.Path(folder)
        for number, name in enumerate(class_names):
            default = {"storageclass.kubernetes.io/is-default-class": "true"} if number == 0 else {}
            client.create("/apis/storage.k8s.io/v1/storageclasses", {
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": PROVISIONER,
                "metadata": {"name": name, "annotations": default}, "volumeBindingMode": "Immediate"})
        self.class_names = set(class_names)
        self.watch = Watched(client, "/api/v1/persistentvolumeclaims", self._changed)

    def folder_of(self, namespace, name):
        return self.folder / namespace / name

    def _changed(self, claim):
        for one in ([claim] if claim is not None else self.watch_all()):
            if (one["spec"].get("storageClassName") in self.class_names and not one["spec"].get("volumeName")
                    and "deletionTimestamp" not in one["metadata"]):
                self._provide(one)

    def watch_all(self):
        return list(self.watch.all().values()) if hasattr(self, "watch") else []

    def _provide(self, claim):
        meta, spec = claim["metadata"], claim["spec"]
        path = self.folder_of(meta["namespace"], meta["name"])
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pvc-{meta['uid']}"},
                  "spec": {"capacity": spec["resources"]["requests"], "accessModes": spec["accessModes"],
                           "persistentVolumeReclaimPolicy": "Retain", "storageClassName": spec["storageClassName"],
                           "hostPath": {"path": str(path)},
                           "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": meta["namespace"],
                                        "name": meta["name"], "uid": meta["uid"]}}}
        try:
            self.client.create("/api/v1/persistentvolumes", volume)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    def stop(self):
        self.watch.stop()
