"""A room includes only what it may know, and LibTorch never meets protobuf in one file."""
import functools
import re

from source_tree import ROOMS, ROOT, files, includes, name

MAY_INCLUDE = {
    "common": {"common"},
    "rollout_server": {"rollout_server", "common", "proto"},
    "trainer": {"trainer", "common", "proto"},
    "drift_lab": {"drift_lab", "rollout_server", "trainer", "common", "proto"},
    "cli": {"cli", "drift_lab", "rollout_server", "trainer", "common", "proto"},
}
# The conversion points, where wire messages become tensors.
BOTH_SIDES = {"rollout_server/service/weight_service.cc", "trainer/experience/experience_batch.cc",
              "trainer/train_step.cc"}
# Messages (not services) may be values in headers of the two rooms that exchange them; the closure
# test below keeps LibTorch away from whoever includes those.
MESSAGE_ROOMS = ("trainer/", "rollout_server/")
# What other headers of Abseil bring along in one version of it and not in the next.
ABSEIL_STRINGS = {
    "str_cat.h": r"absl::Str(Cat|Append)\(",
    "str_join.h": r"absl::StrJoin\(",
    "str_split.h": r"absl::StrSplit\(",
    "str_format.h": r"absl::StrFormat\(",
    "numbers.h": r"absl::SimpleAto[a-z]\(",
    "match.h": r"absl::(StartsWith|EndsWith|StrContains)\(",
}
LIBTORCH = ("ATen/", "torch/", "c10/")
WIRE = ("grpc", "google/protobuf", "proto/", "spdlog/", "prometheus/")


def test_each_room_includes_only_what_it_may_know():
    broken = []
    for room, allowed in MAY_INCLUDE.items():
        for path in files([room], {".h", ".cc", ".cu"}):
            for target in includes(path):
                top = target.split("/")[0]
                if top in {*ROOMS, "proto", "tests"} and "/" in target and top not in allowed:
                    broken.append(f"{name(path)}: {room}/ may not include {target}")
    assert not broken, "\n".join(broken)


def test_files_include_the_string_functions_that_they_call():
    broken = []
    for path in files([*ROOMS, "tests"], {".h", ".cc", ".cu"}):
        header, text = path.with_suffix(".h"), path.read_text(encoding="utf-8")
        known = {*includes(path), *(includes(header) if header.exists() else ())}
        broken += [f"{name(path)}: calls what is of absl/strings/{target} and does not include it"
                   for target, call in ABSEIL_STRINGS.items()
                   if re.search(call, text) and f"absl/strings/{target}" not in known]
    assert not broken, "\n".join(broken)


def may_be_in_a_header(header, target):
    is_message = target.startswith("proto/") and not target.endswith(".grpc.pb.h")
    return (not target.startswith(WIRE)
            or (is_message and header.startswith(MESSAGE_ROOMS)))


def test_headers_are_free_of_wire_log_and_metrics_libraries():
    broken = [f"{name(path)}: a header may not include {target}"
              for path in files(ROOMS, {".h"}) for target in includes(path)
              if not may_be_in_a_header(name(path), target)]
    assert not broken, "\n".join(broken)


@functools.cache
def everything_included(relative):
    """All includes of a file, through our own headers."""
    found = set()
    for target in includes(ROOT / relative):
        found.add(target)
        if (ROOT / target).is_file() and target.split("/")[0] in ROOMS and target != relative:
            found |= everything_included(target)
    return frozenset(found)


def test_no_file_sees_both_libtorch_and_the_wire_libraries():
    broken = []
    for path in files(ROOMS, {".cc"}):
        found = everything_included(name(path))
        torch = sorted(t for t in found if t.startswith(LIBTORCH))
        wire = sorted(t for t in found if t.startswith(WIRE))
        if torch and wire and name(path) not in BOTH_SIDES:
            broken.append(f"{name(path)}: includes {torch[0]} and {wire[0]}")
    assert not broken, "\n".join(broken)
