#!/usr/bin/env python3
"""transformers' generate with torch.compile on the cases of `tandem bench rollout` (README.md here)."""
import os
import pathlib
import sys

script = pathlib.Path(__file__).with_name("transformers.py")
os.execv(sys.executable, [sys.executable, str(script), "--compile", *sys.argv[1:]])
