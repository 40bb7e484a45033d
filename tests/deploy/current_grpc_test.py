"""deploy/setup/current_grpc.sh without a network and without a root folder. Stand-ins for mmdebstrap, for entering the root and
for cargo record their arguments, and a build makes tests that print what gtest prints."""
import fcntl
import os
import pathlib
import re
import shutil
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
STUBS = {
    "id": "echo 0",
    "apt-cache": 'echo " 500 http://mirror.example/debian bookworm/main amd64 Packages"',
    # The folder is the argument after the suite.
    "mmdebstrap": 'echo "mmdebstrap $*" >>"$ASKED"; [[ -z ${NO_NETWORK:-} ]] || exit 100\n'
                  'while [[ $1 != unstable ]]; do shift; done; mkdir -p "$2"',
    "cargo": 'echo "cargo $* into $CARGO_TARGET_DIR" >>"$ASKED"',
    # unshare --mount bash -euc SCRIPT _ ROOT TREE BUILD COMMAND
    "unshare": """build=$8 command=$9
echo "inside: $command" >>"$ASKED"
case $command in
  *readelf*) [[ -z ${UNLIKE:-} ]] || echo "$UNLIKE" ;;
  *dirname*) echo /usr/lib/machine ;;
  *dpkg-query*) printf 'libgrpc++-dev:amd64\\t1.83.0-2\\n' ;;
  "cmake -S"*) mkdir -p "$build" ;;
  "cmake --build"*)
    [[ -z ${BROKEN:-} ]] || exit 1
    mkdir -p "$build/tests/rollout_server"
    for name in ${command#*--target}; do
      [[ $name == *_tests ]] || continue
      result="echo '[  PASSED  ] 2 tests.'"
      [[ $name != "${FAILING:-}" ]] || result="echo 'expected 1, was 2'; exit 1"
      printf '#!/bin/bash\\n%s\\n' "$result" >"$build/tests/$name"
      chmod +x "$build/tests/$name"
    done ;;
esac""",
}
# The Python of the environment, with the imported modules and a pytest with three tests.
PYTHON = 'case "$1 $2" in "-m pytest") echo "pytest ${*: -1} of $TANDEM_BIN" >>"$ASKED"; echo "3 passed in 0.1s" ;; esac'


class Checkout:
    def __init__(self, folder):
        self.tree, self.stubs, self.out, self.asked = (folder / name for name in ("tree", "stubs", "out", "asked"))
        shutil.copytree(SOURCE / "deploy/setup", self.tree / "deploy/setup")
        for name, body in STUBS.items():
            write_program(self.stubs / name, body)
        write_program(self.tree / ".deps/venv/bin/python", PYTHON)
        for name in listed("PAIR_TESTS"):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).touch()

    def run(self, *arguments, **environment):
        """(exit code, recorded arguments, stderr)"""
        self.asked.write_text("")
        done = subprocess.run([self.tree / "deploy/setup/current_grpc.sh", *arguments], capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": f"{self.stubs}:{os.environ['PATH']}", "ASKED": str(self.asked), **environment})
        return done.returncode, self.asked.read_text(), done.stderr


def write_program(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def listed(name):
    """The words of an array of the script."""
    text = (SOURCE / "deploy/setup/current_grpc.sh").read_text()
    return re.search(rf"^{name}=\(([^)]*)\)", text, re.M)[1].split()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_without_targets_it_builds_the_programs_and_the_tests_and_counts_what_passed(checkout):
    code, asked, errors = checkout.run(checkout.out)
    assert code == 0, errors
    (built,) = re.findall(r"^inside: cmake --build '.*' --target (.*)$", asked, re.M)
    assert built.split() == listed("PROGRAMS") + listed("TESTS")
    assert re.findall(r"^pytest (\S+) of (\S+)$", asked, re.M) == [(name, f"{checkout.out}/build/bin") for name in listed("PAIR_TESTS")]
    assert f"{2 * len(listed('TESTS')) + 3 * len(listed('PAIR_TESTS'))} tests passed" in errors.splitlines()[-1]


def test_what_it_names_is_in_the_tree_and_is_what_the_build_installs_elsewhere():
    assert all((SOURCE / name).is_file() for name in listed("PAIR_TESTS"))
    declared = "\n".join(path.read_text() for path in SOURCE.glob("tests/**/CMakeLists.txt"))
    assert all(re.search(rf"NAME {name}\b", declared) for name in listed("TESTS"))
    install = re.search(r"^PACKAGES=\(([^)]*)\)", (SOURCE / "deploy/setup/install.sh").read_text(), re.M)[1].split()
    for_the_checkout_alone = {"make", "ccache", "python3-venv", "curl"}
    named = {*listed("PACKAGES"), *listed("AS_GRPC_HAS_THEM"), *listed("FROM_EXPERIMENTAL")}
    assert named == set(install) - for_the_checkout_alone | {"libgrpc-dev"}


def test_grpc_and_protobuf_are_of_experimental_and_what_they_were_compiled_with_is_not(checkout):
    _, asked, _ = checkout.run(checkout.out)
    (line,) = re.findall("^mmdebstrap .*$", asked, re.M)
    (words,) = re.findall(r"install [-\w ]* -t experimental ([^\n]*?) --customize-hook", line)
    assert words.split() == [*listed("FROM_EXPERIMENTAL"), "libabsl-dev/unstable", "libssl-dev/unstable"]


def test_headers_of_another_library_than_grpc_was_compiled_with_are_found_before_an_hour_of_compiling(checkout):
    unlike = "libabsl_status.so.20260526, and the headers are of libabsl_status.so.20260817;"
    code, asked, errors = checkout.run(checkout.out, UNLIKE=unlike)
    assert code == 3 and "inside: cmake" not in asked
    assert f"gRPC there was compiled with {unlike} one program would hold both" in errors


def test_programs_name_the_loader_and_the_libraries_of_the_root(checkout):
    (checkout.out / "root/usr/lib/machine").mkdir(parents=True)
    (checkout.out / "root.stamp").write_text(" ".join(["unstable", *listed("PACKAGES"), *listed("AS_GRPC_HAS_THEM"), "experimental",
                                                       *listed("FROM_EXPERIMENTAL")]) + "\n")
    (checkout.out / "root/usr/lib/machine/ld-linux-x.so.2").touch()
    code, asked, errors = checkout.run(checkout.out, "common_tests")
    assert code == 0, errors
    for kind in ("EXE", "SHARED", "MODULE"):
        assert (f"-DCMAKE_{kind}_LINKER_FLAGS='-Wl,--disable-new-dtags,-rpath,{checkout.out}/root/usr/lib/machine,"
                f"--dynamic-linker={checkout.out}/root/usr/lib/machine/ld-linux-x.so.2'") in " ".join(asked.split())


def test_the_tokenizer_crate_is_made_outside_as_the_checkout_makes_it(checkout):
    _, asked, _ = checkout.run(checkout.out)
    tree = checkout.tree
    assert (f"cargo build --release --locked --quiet --manifest-path {tree}/common/tokenizer/ffi/Cargo.toml "
            f"into {tree}/build/rust\n") in asked
    assert "-DCARGO=/usr/bin/true" in asked
    recipe = (SOURCE / "cmake/rust.cmake").read_text()
    assert "build --release --locked --quiet --manifest-path ${TANDEM_RUST_DIR}/Cargo.toml" in recipe
    assert "set(TANDEM_RUST_TARGET ${PROJECT_SOURCE_DIR}/build/rust)" in recipe


def test_another_run_keeps_the_root_and_one_that_was_broken_off_is_made_again(checkout):
    code, asked, errors = checkout.run(checkout.out, NO_NETWORK="1")
    assert code == 3 and "the root was not made" in errors and "APT_OPTION" in errors
    code, asked, errors = checkout.run(checkout.out, "common_tests")
    assert code == 0 and asked.count("mmdebstrap") == 1, errors
    code, asked, errors = checkout.run(checkout.out, "common_tests")
    assert code == 0 and "mmdebstrap" not in asked, errors


def test_a_root_of_other_packages_goes_with_what_was_compiled_in_it(checkout):
    assert checkout.run(checkout.out, "common_tests")[0] == 0
    script = checkout.tree / "deploy/setup/current_grpc.sh"
    script.write_text(script.read_text().replace("libboost-dev", "libboost-all-dev"))
    code, asked, errors = checkout.run(checkout.out, "trainer_tests")
    assert code == 0 and asked.count("mmdebstrap") == 1, errors
    assert not (checkout.out / "build/tests/common_tests").exists()


def test_a_folder_of_somebody_else_is_left_alone(checkout):
    (checkout.out / "root").mkdir(parents=True)
    (checkout.out / "root/letter").touch()
    code, asked, errors = checkout.run(checkout.out)
    assert code == 2 and "did not make" in errors and "mmdebstrap" not in asked
    assert (checkout.out / "root/letter").exists()


def test_two_runs_do_not_share_a_folder(checkout):
    assert checkout.run(checkout.out, "common_tests")[0] == 0
    with open(checkout.out / "root.stamp", encoding="utf-8") as stamp:
        fcntl.flock(stamp, fcntl.LOCK_EX)
        code, asked, errors = checkout.run(checkout.out, "common_tests")
    assert code == 2 and "another run is at work" in errors and asked == ""


def test_a_test_that_fails_is_named_with_what_it_said_and_the_others_are_run(checkout):
    code, _, errors = checkout.run(checkout.out, "common_tests", "trainer_tests", FAILING="common_tests")
    assert code == 1
    assert "expected 1, was 2" in errors and "trainer_tests: 2 tests passed" in errors
    assert errors.splitlines()[-1] == "current_grpc: 2 tests passed; failed: common_tests"


def test_a_build_that_fails_is_not_a_test_that_fails(checkout):
    code, asked, errors = checkout.run(checkout.out, BROKEN="1")
    assert code == 3 and "the build failed" in errors and "pytest tests" not in asked


@pytest.mark.parametrize("missing, message", [
    ("mmdebstrap", "apt-get install mmdebstrap"), ("id", "root is needed"), ("apt-cache", "apt-get update"), ("python", "install.sh --tests")])
def test_what_is_missing_is_said_before_anything_is_made(checkout, missing, message):
    if missing == "python":
        write_program(checkout.tree / ".deps/venv/bin/python", "exit 1")
    elif missing == "mmdebstrap":
        # PATH has only the stand-ins and the programs that the script itself runs.
        (checkout.stubs / "mmdebstrap").unlink()
        for name in ("bash", "dirname", "sed", "head", "mkdir"):
            (checkout.stubs / name).symlink_to(shutil.which(name))
    else:
        write_program(checkout.stubs / missing, "echo 1000")
    path = {"PATH": str(checkout.stubs)} if missing == "mmdebstrap" else {}
    code, asked, errors = checkout.run(checkout.out, **path)
    assert code == 2 and message in errors and asked == ""
    assert not checkout.out.exists()


def test_without_a_directory_it_says_how_it_is_called(checkout):
    for arguments in ((), ("--help",)):
        code, asked, errors = checkout.run(*arguments)
        assert code == 2 and "current_grpc.sh DIRECTORY" in errors and asked == ""
    code, asked, errors = checkout.run(checkout.out, "tests/no_such_test.py")
    assert code == 2 and "tests/no_such_test.py is no file" in errors and asked == ""


def test_configuring_does_not_say_that_a_library_which_is_there_could_not_be_found(tmp_path):
    """gRPC's own search for c-ares reports it (cmake/Findc-ares.cmake)."""
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.25)\nproject(search CXX)\nlist(APPEND CMAKE_MODULE_PATH \"{SOURCE}/cmake\")\n"
        "find_package(gRPC CONFIG REQUIRED)\nif(NOT TARGET c-ares::cares)\n  message(FATAL_ERROR lost)\nendif()\n")
    done = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Found c-ares" in done.stdout
    assert "Could NOT find" not in done.stdout
