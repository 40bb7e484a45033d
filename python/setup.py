"""Generates the modules of proto/ into the wheel and puts proto/ into the sdist. The rest of the package is in pyproject.toml.

Where tandem_rl/bin has the programs (deploy/release/build_wheel.py puts them there), the wheel has them too: it is one for this
platform and for every Python, and depends on LibTorch's wheel and on what `tandem demo` makes its model with.

The dependencies are made here, because generated code refuses a grpcio or protobuf that is older than the generator: the wheel asks
for what the grpcio-tools that built it says. An older grpcio-tools makes a wheel that works with older and with newer ones."""
import importlib.metadata
import importlib.util
import pathlib
import re
import shutil

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
HAS_PROGRAMS = (HERE / "tandem_rl/bin/tandem").is_file()


def load_generate():
    """The module tandem_rl._proto.generate without its package, which is not installed yet."""
    spec = importlib.util.spec_from_file_location("tandem_generate", HERE / "tandem_rl/_proto/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dependencies():
    try:
        needed_by_generated = importlib.metadata.requires("grpcio-tools") or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("grpcio-tools is missing, which generates the modules of proto/: pip install grpcio-tools, or build with "
                         "isolation, for which pip brings it") from None
    lower = {}
    for requirement in needed_by_generated:
        match = re.match(r"(grpcio|protobuf)\b.*>=\s*([\d.]+)", requirement)
        if match:
            lower[match[1]] = match[2]
    # Generated code works up to the next major version of protobuf: https://protobuf.dev/support/cross-version-runtime-guarantee
    end = int(lower["protobuf"].split(".")[0]) + 2
    of_programs = ["gguf>=0.17", f"torch=={libtorch_version()}"] if HAS_PROGRAMS else []
    return ["numpy>=1.26", f"grpcio>={lower['grpcio']}", f"protobuf>={lower['protobuf']},<{end}", *of_programs]


def libtorch_version():
    """The version that the programs are linked to, which build_wheel.py writes beside them."""
    return (HERE / "tandem_rl/bin/LIBTORCH_VERSION").read_text().strip()


class BuildWithProtos(build_py):
    def run(self):
        super().run()
        is_editable = getattr(self, "editable_mode", False)
        load_generate().generate((HERE if is_editable else pathlib.Path(self.build_lib)) / "tandem_rl" / "_proto")


class SdistWithProtos(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [name for name in files if "_pb2" not in pathlib.Path(name).name])
        target = pathlib.Path(base_dir, "proto")
        target.mkdir(exist_ok=True)
        for path in sorted((load_generate().source_root() / "proto").glob("*.proto")):
            shutil.copyfile(path, target / path.name)


class WithPrograms(Distribution):
    def has_ext_modules(self):
        return HAS_PROGRAMS  # then the wheel is one for a platform


class WheelForAnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(install_requires=dependencies(), distclass=WithPrograms,
      cmdclass={"build_py": BuildWithProtos, "sdist": SdistWithProtos, "bdist_wheel": WheelForAnyPython})
