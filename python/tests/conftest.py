"""The package of this checkout is the one that is tested, whether it is installed or not."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "support" / "python")]
