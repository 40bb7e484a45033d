"""Checks of the image's recipe without a build. image_test.py builds the image."""
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

import recipe

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
sys.path.insert(0, str(SOURCE / "deploy/container"))
import sbom  # noqa: E402  (the script under test)

CONTAINERFILE = (SOURCE / "deploy/container/Containerfile").read_text()
ARGUMENTS, STAGES = recipe.read(CONTAINERFILE)
IMAGE = STAGES[-1]
PATTERNS = [line for line in (SOURCE / ".containerignore").read_text().splitlines()
            if line and not line.startswith("#")]


def resolved(text):
    for _ in range(3):
        text = re.sub(r"\$\{(\w+)\}", lambda m: ARGUMENTS.get(m.group(1), m.group(0)), text)
    return text


def test_the_reader_joins_lines_and_leaves_out_comments():
    text = "ARG A=x\n# no\nFROM ${A} AS one\nRUN a \\\n    # nor this\n    b\nFROM one\nUSER 1\n"
    arguments, stages = recipe.read(text)
    assert arguments == {"A": "x"}
    assert [(s.base, s.name, s.steps) for s in stages] == [
        ("${A}", "one", [("RUN", "a b")]), ("one", "", [("USER", "1")])]


def test_every_stage_is_from_an_earlier_one_or_from_a_base_pinned_by_digest():
    names = []
    for stage in STAGES:
        base = resolved(stage.base)
        assert base in names or re.fullmatch(r"[a-z0-9./-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", base), stage.base
        names.append(stage.name)
    assert {"image-cpu", "image-cuda"} <= set(names), "VARIANT chooses between these"


def test_the_image_runs_as_a_fixed_user_who_is_not_root():
    assert IMAGE.of("USER") == ["65532:65532"]
    after = [name for name, _ in IMAGE.steps[IMAGE.steps.index(("USER", "65532:65532")):]]
    assert not {"RUN", "COPY"} & set(after), "nothing is written as that user"


def test_the_image_says_how_it_is_started_and_stopped_and_leaves_health_to_probes():
    assert IMAGE.of("ENTRYPOINT") == ['["/usr/local/bin/tandem"]']
    assert IMAGE.of("STOPSIGNAL") == ["SIGTERM"]
    assert IMAGE.of("EXPOSE") == ["50051/tcp 9400/tcp 9401/tcp"]
    assert not any(stage.of("HEALTHCHECK") for stage in STAGES)


def test_nothing_is_fetched_but_by_package_managers():
    for stage in STAGES:
        assert not stage.of("ADD")
        for run in stage.of("RUN"):
            assert not re.search(r"\b(curl|wget|git clone)\b|https?://", run), run


def test_the_image_takes_from_the_build_stage_only_what_was_laid_out_for_it():
    taken = [copy for stage in STAGES[1:] for copy in stage.of("COPY")]
    assert taken == ["--from=build /out/root/ /", "--from=sbom /out/sbom.spdx.json /usr/share/doc/tandem/sbom.spdx.json"]


def test_the_open_containers_labels_are_there():
    labels = " ".join(IMAGE.of("LABEL"))
    for key in ("title", "description", "version", "revision", "source", "licenses"):
        assert f"org.opencontainers.image.{key}=" in labels


def test_package_lists_do_not_stay_in_the_image():
    run, = next(s for s in STAGES if s.name == "runtime").of("RUN")
    assert "rm -rf /var/lib/apt/lists/*" in run and "--no-install-recommends" in run


def test_the_context_holds_the_sources_and_nothing_that_was_built_fetched_or_is_private():
    for path in ("build/release/bin/tandem", ".deps/venv/bin/python", "models/smollm2-135m-instruct/model.safetensors",
                 "runs/demo/metrics.jsonl", ".git/config", "tls.key", "notes.txt", "common/__pycache__/x.pyc"):
        assert recipe.ignored(path, PATTERNS), path
    top = re.findall(r"^add_subdirectory\((\w+)\)", (SOURCE / "CMakeLists.txt").read_text(), re.M)
    assert len(top) > 5
    top += re.findall(r"^add_subdirectory\(\$\{PROJECT_SOURCE_DIR\}/([\w/]+)", (SOURCE / "tests/CMakeLists.txt").read_text(), re.M)
    assert "python/tests" in top
    for path in ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "cmake/libtorch.cmake", "examples/demo.yaml",
                 "deploy/setup/install.sh", *(f"{folder}/CMakeLists.txt" for folder in top)):
        assert not recipe.ignored(path, PATTERNS), path


def test_docker_ignores_what_the_others_ignore():
    assert (SOURCE / ".dockerignore").read_text() == (SOURCE / ".containerignore").read_text()


def test_the_pins_of_the_build_stage_are_those_of_the_checkout():
    def pins(name):
        text = (SOURCE / "deploy/setup" / name).read_text()
        return dict(re.findall(r"^([\w-]+)==([\w.]+)$", text, re.M))
    programs, all_pins = pins("requirements-programs.txt"), pins("requirements.txt")
    assert programs["torch"] == all_pins["torch"]
    wanted = " ".join(importlib.metadata.requires("torch") or [])
    for name in ("nvidia-cuda-cupti", "nvidia-cuda-runtime"):
        stated = re.search(rf"{name}==([\w.]+)", wanted)
        # A LibTorch without CUDA needs neither.
        assert stated is None or programs[name] == stated.group(1)


def test_no_target_is_compiled_for_the_build_machine_alone():
    """Kernels for wider vectors have a target attribute and are chosen at run time."""
    lists = [SOURCE / "CMakeLists.txt", *(SOURCE / "cmake").glob("*.cmake")]
    lists += [path for folder in ("proto", "common", "rollout_server", "trainer", "drift_lab", "cli")
              for path in (SOURCE / folder).rglob("CMakeLists.txt")]
    assert len(lists) > 10
    assert not [path for path in lists if re.search(r"-m(arch|tune|cpu|avx|sse)", path.read_text())]


def test_the_scripts_are_clean():
    scripts = [SOURCE / "deploy/container" / name for name in ("build.sh", "compile.sh")]
    checker = ["shellcheck"] if shutil.which("shellcheck") else ["bash", "-n"]
    for script in scripts:
        done = subprocess.run([*checker, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


STATUS = """Package: libre2-9
Status: install ok installed
Architecture: amd64
Version: 20220601+dfsg-1+b1
Description: efficient regular expression library
 of several lines

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_the_sbom_names_installed_debian_packages_and_no_removed_ones():
    found = list(sbom.debian_packages(STATUS, 'ID=debian\nVERSION_ID="12"\n'))
    assert [p["name"] for p in found] == ["libre2-9"]
    assert found[0]["versionInfo"] == "20220601+dfsg-1+b1"
    assert found[0]["externalRefs"][0]["referenceLocator"] == (
        "pkg:deb/debian/libre2-9@20220601%2Bdfsg-1%2Bb1?arch=amd64&distro=debian-12")


def test_the_sbom_names_crates_that_are_linked_and_not_those_of_build_scripts_tests_or_macros():
    def crate(name, licence, source="registry", kind="lib"):
        return {"id": name, "name": name, "version": "1.0.0", "license": licence, "source": source,
                "targets": [{"kind": [kind]}]}

    def edge(name, kind):
        return {"pkg": name, "dep_kinds": [{"kind": kind}]}
    metadata = {
        "packages": [crate("own", None, None), crate("linked", "MIT/Apache-2.0"), crate("deep", "MIT"),
                     crate("script", "MIT"), crate("test", "MIT"), crate("macro", "MIT", kind="proc-macro"),
                     crate("parser", "MIT")],
        "resolve": {"root": "own", "nodes": [
            {"id": "own", "deps": [edge("linked", None), edge("script", "build"), edge("test", "dev")]},
            {"id": "linked", "deps": [edge("deep", None), edge("macro", None)]},
            {"id": "macro", "deps": [edge("parser", None)]}, {"id": "parser", "deps": []},
            {"id": "deep", "deps": []}, {"id": "script", "deps": []}, {"id": "test", "deps": []}]}}
    found = list(sbom.crates(metadata))
    assert [(p["name"], p["licenseDeclared"]) for p in found] == [
        ("deep", "MIT"), ("linked", "MIT OR Apache-2.0")]


def test_a_licence_that_is_no_expression_is_not_repeated_as_one():
    def declared(licence):
        return sbom.package("pypi", "x", "1", "pkg:pypi/x@1", licence)["licenseDeclared"]
    assert declared("Apache-2.0 OR MIT") == "Apache-2.0 OR MIT"
    assert declared("see the LICENSE file!") == "NOASSERTION"
    assert declared("LicenseRef-NVIDIA-Proprietary") == "NOASSERTION"


def test_manifests_and_pages_name_the_image_as_it_is_built():
    """deploy/container/build.sh tags tandem:VERSION-VARIANT."""
    version = re.search(r"^project\(tandem VERSION ([0-9.]*)", (SOURCE / "CMakeLists.txt").read_text(), re.M).group(1)
    assert "tag=tandem:$version-$variant" in (SOURCE / "deploy/container/build.sh").read_text()
    assert f"newTag: {version}-cpu\n" in (SOURCE / "deploy/kubernetes/base/kustomization.yaml").read_text()
    for page in (SOURCE / "docs").rglob("*.md"):
        for tag in re.findall(r"(?<![\w./-])tandem:(\d[\w.-]*|latest)", page.read_text()):
            assert tag in (f"{version}-cpu", f"{version}-cuda", "VERSION-cpu"), f"{page.name}: tandem:{tag}"
