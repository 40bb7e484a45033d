"""Generates the modules of proto/ into the wheel and puts proto/ into the sdist. The rest of the package is in pyproject.toml.

The dependencies are made here, because generated code refuses a grpcio or protobuf that is older than the generator: the wheel asks
for what the grpcio-tools that built it says. An older grpcio-tools makes a wheel that works with older and with newer ones."""
import importlib.metadata
import importlib.util
import pathlib
import re
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent


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
    return ["numpy>=1.26", f"grpcio>={lower['grpcio']}", f"protobuf>={lower['protobuf']},<{end}"]


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


setup(install_requires=dependencies(), cmdclass={"build_py": BuildWithProtos, "sdist": SdistWithProtos})
