"""Runs the command lm_eval several times in one process, so that its packages are imported once; lm_eval_test.py starts it.

    python lm_eval_driver.py COMMANDS.json

The file has a list of argument lists. Tasks are those of --include_path: lm-eval would read ten thousand files of its own tasks
for each command to find their names."""
import functools
import json
import pathlib
import sys

import lm_eval.tasks
from lm_eval.__main__ import cli_evaluate


def main():
    lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    for command in json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")):
        sys.argv = ["lm_eval", *command]
        cli_evaluate()


if __name__ == "__main__":
    main()
