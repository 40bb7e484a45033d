"""Generates the modules of proto/ into this package, with types (.pyi). Run by setup.py when the wheel is built, and by hand in a
checkout:

    PYTHONPATH=python python -m tandem_rl._proto.generate

Needs grpcio-tools. The messages are registered under the names that proto/ has in the repository (proto/rollout.proto), so a
process may also load modules that somebody else generated from the same files."""
import pathlib
import re
import sys
import tempfile

PROTOS = ("rollout", "weights", "experience", "reward")  # proto/ranks.proto stays between the ranks of one trainer

# `from proto import rollout_pb2 as ..` works only where proto/ is on the path.
_ABSOLUTE = re.compile(r"^from proto import ", re.MULTILINE)


def source_root() -> pathlib.Path:
    """The directory that holds proto/: the checkout above python/, or an unpacked sdist. Raises FileNotFoundError."""
    here = pathlib.Path(__file__).resolve()
    candidates = here.parents[2:4]
    for root in candidates:
        if (root / "proto" / "rollout.proto").is_file():
            return root
    raise FileNotFoundError(f"there is no proto/rollout.proto in {' or '.join(map(str, candidates))}: run this in a checkout or an "
                            "sdist of Tandem; an installed wheel already has what is generated")


def generate(out: pathlib.Path) -> list[pathlib.Path]:
    """Writes the modules into the directory `out` and returns their paths. Raises FileNotFoundError without proto/, ImportError
    without grpcio-tools, and RuntimeError where protoc fails, which has then said why on standard error."""
    root = source_root()
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "pyi")]
        if protoc.main(["protoc", f"-I{root}", *outputs, *(f"proto/{name}.proto" for name in PROTOS)]) != 0:
            raise RuntimeError(f"protoc failed on the files of {root / 'proto'}")
        out.mkdir(parents=True, exist_ok=True)
        written = []
        for path in sorted(pathlib.Path(folder, "proto").iterdir()):
            text = _ABSOLUTE.sub("from . import ", path.read_text(encoding="utf-8"))
            written.append(out / path.name)
            written[-1].write_text(text, encoding="utf-8")
    return written


def main() -> int:
    try:
        written = generate(pathlib.Path(__file__).resolve().parent)
    except ImportError as error:
        print(f"grpcio-tools is missing: pip install grpcio-tools ({error})", file=sys.stderr)
        return 1
    except (FileNotFoundError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(written)} files in {written[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
