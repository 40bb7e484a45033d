"""The messages and services of proto/ as Python modules (rollout_pb2, rollout_pb2_grpc and so on), for tandem_rl.client. They are
generated when the wheel is built (python/setup.py), or in a checkout by `python -m tandem_rl._proto.generate`; they are not in the
repository, and nothing is generated at run time."""
import importlib
from typing import Any


class StubsMissing(ImportError):
    """The generated modules are not there. The message says how to make them."""


def __getattr__(name: str) -> Any:
    """Imports a generated module. Raises StubsMissing where it was not generated, and ImportError without grpcio or protobuf."""
    if not name.endswith(("_pb2", "_pb2_grpc")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name == f"{__name__}.{name}":
            raise StubsMissing(
                f"tandem_rl.client needs {__name__}.{name}, which is generated from proto/ and is not in the repository: install "
                "the package by `pip install ./python` in the checkout, or generate it there by "
                "`PYTHONPATH=python python -m tandem_rl._proto.generate`, which needs grpcio-tools") from None
        raise ImportError(f"tandem_rl.client needs grpcio and protobuf: pip install grpcio protobuf ({error})") from error
