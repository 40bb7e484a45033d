"""Which folder may include which, and that no file includes both LibTorch and protobuf."""
import functools
import re

from source_tree import SOURCE_FOLDERS, ROOT, files, includes, name

MAY_INCLUDE = {
    "common": {"common"},
    "rollout_server": {"rollout_server", "common", "proto"},
    "trainer": {"trainer", "common", "proto"},
    "drift_lab": {"drift_lab", "rollout_server", "trainer", "common", "proto"},
    "cli": {"cli", "drift_lab", "rollout_server", "trainer", "common", "proto"},
}
# The files in which messages become tensors.
BOTH_SIDES = {"rollout_server/service/weight_service.cc", "trainer/experience/experience_batch.cc",
              "trainer/train_step.cc"}
# Messages (not services) may be in headers of the two folders that exchange them. The last test keeps LibTorch out of
# files that include such a header.
MESSAGE_FOLDERS = ("trainer/", "rollout_server/")
# Headers that other headers of Abseil include in one version and not in the next.
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


def test_each_folder_includes_only_the_folders_that_it_may():
    broken = []
    for folder, allowed in MAY_INCLUDE.items():
        for path in files([folder], {".h", ".cc", ".cu"}):
            for target in includes(path):
                top = target.split("/")[0]
                if top in {*SOURCE_FOLDERS, "proto", "tests"} and "/" in target and top not in allowed:
                    broken.append(f"{name(path)}: {folder}/ may not include {target}")
    assert not broken, "\n".join(broken)


def test_files_include_the_string_functions_that_they_call():
    broken = []
    for path in files([*SOURCE_FOLDERS, "tests"], {".h", ".cc", ".cu"}):
        header, text = path.with_suffix(".h"), path.read_text(encoding="utf-8")
        known = {*includes(path), *(includes(header) if header.exists() else ())}
        broken += [f"{name(path)}: calls a function of absl/strings/{target} without including it"
                   for target, call in ABSEIL_STRINGS.items()
                   if re.search(call, text) and f"absl/strings/{target}" not in known]
    assert not broken, "\n".join(broken)


def may_be_in_a_header(header, target):
    is_message = target.startswith("proto/") and not target.endswith(".grpc.pb.h")
    return (not target.startswith(WIRE)
            or (is_message and header.startswith(MESSAGE_FOLDERS)))


def test_headers_are_free_of_wire_log_and_metrics_libraries():
    broken = [f"{name(path)}: a header may not include {target}"
              for path in files(SOURCE_FOLDERS, {".h"}) for target in includes(path)
              if not may_be_in_a_header(name(path), target)]
    assert not broken, "\n".join(broken)


@functools.cache
def everything_included(relative):
    """All includes of a file, directly and through headers of the project."""
    found = set()
    for target in includes(ROOT / relative):
        found.add(target)
        if (ROOT / target).is_file() and target.split("/")[0] in SOURCE_FOLDERS and target != relative:
            found |= everything_included(target)
    return frozenset(found)


def test_no_file_sees_both_libtorch_and_the_wire_libraries():
    broken = []
    for path in files(SOURCE_FOLDERS, {".cc"}):
        found = everything_included(name(path))
        torch = sorted(t for t in found if t.startswith(LIBTORCH))
        wire = sorted(t for t in found if t.startswith(WIRE))
        if torch and wire and name(path) not in BOTH_SIDES:
            broken.append(f"{name(path)}: includes {torch[0]} and {wire[0]}")
    assert not broken, "\n".join(broken)
