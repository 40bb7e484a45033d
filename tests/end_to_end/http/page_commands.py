"""Commands of pages that start the programs of others: the tests of those programs run them as they stand, with the address of a
server of their own in place of the page's."""
import os
import subprocess

import page_blocks
import small_run

URL = "http://127.0.0.1:8000"


def run_block(folder, page, words, url, replace=(), timeout=300):
    """Runs, in `folder`, the commands of the one `console` block of `page` that contains `words`, but for those that install.
    Returns what was printed. Each pair of `replace` is a text of the block and what stands in its place."""
    block, = [one for one in page_blocks.blocks_of(small_run.SOURCE, page) if one.language == "console" and words in one.text]
    for name in (".deps", "examples", "models"):
        (folder / name).symlink_to(small_run.SOURCE / name)
    assert URL in block.text
    script = block.text.replace(URL, url)
    for old, new in replace:
        assert old in script, old
        script = script.replace(old, new)
    script = "\n".join(line for line in script.splitlines() if not line.startswith("deploy/setup/"))
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(folder)})
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr
