"""The wire formats still read what the last release wrote.

tests/testdata/proto/released.desc has the messages of the last release. A field may be added. The type, name and label of
a field number and the messages of a method must not change. Removed numbers must be reserved. After a release:

    protoc -I . --include_imports --descriptor_set_out=tests/testdata/proto/released.desc proto/*.proto
"""
import subprocess
import tempfile

from google.protobuf import descriptor_pb2
from source_tree import ROOT

RELEASED = ROOT / "tests/testdata/proto/released.desc"


def current():
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/current.desc"
        protos = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "proto").glob("*.proto"))
        subprocess.run(["protoc", "-I", ".", "--include_imports", f"--descriptor_set_out={out}",
                        *protos], cwd=ROOT, check=True)
        with open(out, "rb") as f:
            return descriptor_pb2.FileDescriptorSet.FromString(f.read())


def messages(descriptors):
    """Full name -> message descriptor, nested ones included."""
    found = {}

    def visit(prefix, message):
        full = f"{prefix}.{message.name}"
        found[full] = message
        for nested in message.nested_type:
            visit(full, nested)

    for file in descriptors.file:
        for message in file.message_type:
            visit(file.package, message)
    return found


def enums(descriptors):
    found = {}
    for file in descriptors.file:
        for enum in file.enum_type:
            found[f"{file.package}.{enum.name}"] = enum
    for full, message in messages(descriptors).items():
        for enum in message.enum_type:
            found[f"{full}.{enum.name}"] = enum
    return found


def methods(descriptors):
    return {f"{file.package}.{service.name}/{method.name}":
            (method.input_type, method.output_type, method.client_streaming,
             method.server_streaming)
            for file in descriptors.file for service in file.service for method in service.method}


def breaking_changes(released, now):
    broken = []
    new_messages, new_enums, new_methods = messages(now), enums(now), methods(now)
    for full, message in messages(released).items():
        if full not in new_messages:
            broken.append(f"{full}: message removed")
            continue
        successor = new_messages[full]
        fields = {field.number: field for field in successor.field}
        for field in message.field:
            where = f"{full}.{field.name} = {field.number}"
            new = fields.get(field.number)
            if new is None:
                if not any(r.start <= field.number < r.end for r in successor.reserved_range):
                    broken.append(f"{where}: removed and not reserved")
            elif (new.type, new.type_name, new.label) != (field.type, field.type_name, field.label):
                broken.append(f"{where}: its type or label changed")
            elif new.name != field.name:
                broken.append(f"{where}: renamed to {new.name}")
    for full, enum in enums(released).items():
        values = {v.number: v.name for v in new_enums[full].value} if full in new_enums else {}
        broken += [f"{full}.{v.name} = {v.number}: changed or removed" for v in enum.value
                   if values.get(v.number) != v.name]
    broken += [f"{full}: method changed or removed" for full, shape in methods(released).items()
               if new_methods.get(full) != shape]
    return broken


def test_no_change_breaks_what_the_last_release_wrote():
    released = descriptor_pb2.FileDescriptorSet.FromString(RELEASED.read_bytes())
    assert messages(released) and methods(released)
    broken = breaking_changes(released, current())
    assert not broken, "\n".join(broken)


def test_a_changed_type_and_a_removed_field_are_found():
    released = descriptor_pb2.FileDescriptorSet.FromString(RELEASED.read_bytes())
    now = descriptor_pb2.FileDescriptorSet.FromString(RELEASED.read_bytes())
    message = next(m for f in now.file for m in f.message_type if len(m.field) >= 2)
    message.field[0].type = (descriptor_pb2.FieldDescriptorProto.TYPE_BOOL
                             if message.field[0].type != descriptor_pb2.FieldDescriptorProto.TYPE_BOOL
                             else descriptor_pb2.FieldDescriptorProto.TYPE_BYTES)
    del message.field[1]
    broken = breaking_changes(released, now)
    assert len(broken) == 2, broken
    assert "type or label changed" in broken[0] and "not reserved" in broken[1]
