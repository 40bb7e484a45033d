"""WeightPusher: the trainer's side of a weight push in Python."""
import json
import pathlib
import struct

import xxhash


def tensor_bytes(model):
    """Name -> bytes of model.safetensors, parsed without a library."""
    with open(pathlib.Path(model) / "model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}


class WeightPusher:
    """Owns the server as run `run_id` in epoch 1. The calls of `stub` have a secret (rollout_client.as_caller), by which the
    server recognises its owner. `data` is what a push sends: name -> bytes in the server's dtype."""

    def __init__(self, stub, pb, data, run_id="run", chunk_bytes=1 << 20):
        self.stub, self.pb, self.run_id, self.chunk_bytes = stub, pb, run_id, chunk_bytes
        self.set_data(data)
        self.info = stub.GetWeightInfo(pb.GetWeightInfoRequest(), timeout=120)
        stub.InitTransfer(pb.InitTransferRequest(run_id=run_id, epoch=1), timeout=120)

    def set_data(self, data):
        self.data = data
        self.digests = [self.pb.TensorDigest(name=name, xxh3_128=xxhash.xxh3_128_hexdigest(content))
                        for name, content in data.items()]

    def stage(self, version, flip=None):
        """Sends all tensors, with one wrong bit in the tensor `flip`."""
        manifest = self.pb.WeightManifest(version=version, tensors=self.info.tensors)
        self.stub.BeginUpdate(self.pb.BeginUpdateRequest(run_id=self.run_id, epoch=1, manifest=manifest), timeout=240)
        self.stub.PushChunks(self._chunks(version, flip), timeout=240)

    def _chunks(self, version, flip):
        for index, tensor in enumerate(self.info.tensors):
            data = self.data[tensor.name]
            if tensor.name == flip:
                data = data[:5] + bytes([data[5] ^ 1]) + data[6:]
            # The last chunk first, because any order is allowed.
            for offset in reversed(range(0, len(data), self.chunk_bytes)):
                yield self.pb.PushChunksRequest(run_id=self.run_id, version=version, tensor_index=index,
                                                offset_bytes=offset, data=data[offset:offset + self.chunk_bytes])

    def commit(self, version):
        return self.stub.CommitUpdate(self.pb.CommitUpdateRequest(
            run_id=self.run_id, epoch=1, version=version, digests=self.digests), timeout=120)

    def push(self, version):
        self.stage(version)
        return self.commit(version)

    def abort(self, version):
        self.stub.AbortUpdate(self.pb.AbortUpdateRequest(run_id=self.run_id, version=version), timeout=240)

    def pause(self):
        self.stub.Pause(self.pb.PauseRequest(run_id=self.run_id), timeout=240)

    def resume(self):
        self.stub.Resume(self.pb.ResumeRequest(run_id=self.run_id), timeout=240)


class AdapterPusher(WeightPusher):
    """Pushes adapters (LoRA) of `rank` in place of weights: `data` is A and B of each linear layer, fp32, named as PEFT names them."""

    def __init__(self, stub, pb, rank, **options):
        super().__init__(stub, pb, {}, **options)
        self.rank, self.base = rank, self.info
        lines = sorted(f"{digest.name}:{digest.xxh3_128}\n" for digest in self.base.live_digests)
        self.base_digest = xxhash.xxh3_128_hexdigest("".join(lines).encode())
        tensors = []
        for weight in self.base.tensors:
            if "_proj." in weight.name:
                out, width = weight.shape
                layer = "base_model.model." + weight.name.removesuffix(".weight")
                tensors.append(pb.TensorSpec(name=f"{layer}.lora_A.weight", dtype="F32", shape=[rank, width]))
                tensors.append(pb.TensorSpec(name=f"{layer}.lora_B.weight", dtype="F32", shape=[out, rank]))
        self.info = pb.GetWeightInfoResponse(tensors=tensors)

    def stage(self, version, flip=None):
        manifest = self.pb.WeightManifest(version=version, tensors=self.info.tensors)
        adapter = self.pb.Adapter(rank=self.rank, scaling=1, base_digest=self.base_digest)
        self.stub.BeginUpdate(self.pb.BeginUpdateRequest(run_id=self.run_id, epoch=1, manifest=manifest, adapter=adapter), timeout=240)
        self.stub.PushChunks(self._chunks(version, flip), timeout=240)
