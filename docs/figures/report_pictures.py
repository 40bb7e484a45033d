#!/usr/bin/env python3
"""The pictures of README.md: the report of a run and the attribution of the capture in its middle, on a light and on a dark page.

    make pictures            # a demo run on the CPU first, some minutes; Chromium and playwright are installed
    make pictures RUN=runs/demo-multiply-1

It writes docs/figures/{run_report,attribution}_{light,dark}.webp. Names of directories above the checkout are left out,
and so is the menu of the pages; everything else is what the programs wrote.
"""
import argparse
import io
import os
import pathlib
import shutil
import subprocess

from PIL import Image
from playwright.sync_api import sync_playwright

TREE = pathlib.Path(__file__).resolve().parents[2]
FIGURES = TREE / "docs" / "figures"
MAX_BYTES = 150_000  # of a picture: README.md shows two
# Each picture ends below its element: the first row of charts; the card of the verdict.
REPORT_ENDS, ATTRIBUTION_ENDS = "#learning .grid > :nth-child(2)", "#verdict > .card"
HIDE_MENU = "header nav, header button { visibility: hidden !important; }"
# The server keeps to fp32 instructions on rounded inputs, and so does the lab when it repeats the server's work: with
# those for bf16 it could only say that the instructions differ.
ENVIRONMENT = {**os.environ, "TANDEM_INSTRUCTION_SET": "avx512"}
LEAVE_OUT_DIRECTORIES = """(directory) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replaceAll(directory, '');
}"""


def demo():
    """A run of the demo with captures of three steps."""
    command = ["tandem", "demo", "--seed", "1", "--out", "runs/pictures", "--name", "demo-multiply-1", "--clean"]
    subprocess.run(command, cwd=TREE, check=True, env=ENVIRONMENT)
    return TREE / "runs" / "pictures" / "demo-multiply-1"


def write_pages(run):
    """The two pages: (run report, attribution)."""
    captures = sorted((run / "captures").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    if not captures:
        raise SystemExit(f"{run}: no capture; trainer.capture makes some")
    capture = captures[len(captures) // 2]
    attribution = capture / "attribution.html"
    subprocess.run(["tandem", "drift", "attribute", capture, "--html", attribution], cwd=TREE, check=True,
                   env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    subprocess.run(["tandem", "report", run], cwd=TREE, check=True)
    return run / "report.html", attribution


def picture(browser, page_file, scheme, ends_with):
    """The top of a page as a reader with this colour scheme sees it, down to the element that ends it."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1000, "height": 900}, device_scale_factor=1.5,
                                  bypass_csp=True, reduced_motion="reduce")
    page = context.new_page()
    page.goto(page_file.resolve().as_uri())
    page.add_style_tag(content=HIDE_MENU)
    page.evaluate(LEAVE_OUT_DIRECTORIES, f"{TREE}/")
    page.wait_for_timeout(2000)  # charts grow into their place
    box = page.locator(ends_with).first.bounding_box()
    shot = page.screenshot(clip={"x": 0, "y": 0, "width": 1000, "height": box["y"] + box["height"] + 16}, full_page=True)
    context.close()
    return Image.open(io.BytesIO(shot)).convert("RGB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", nargs="?", type=pathlib.Path, help="a run directory with a capture; default: a new demo run")
    parser.add_argument("--out", type=pathlib.Path, default=FIGURES)
    args = parser.parse_args()

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium: deploy/setup/install.sh --pictures installs it")
    report, attribution = write_pages(args.run or demo())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, page, ends_with in (("run_report", report, REPORT_ENDS), ("attribution", attribution, ATTRIBUTION_ENDS)):
            for scheme in ("light", "dark"):
                path = args.out / f"{name}_{scheme}.webp"
                picture(browser, page, scheme, ends_with).save(path, lossless=True, method=6)
                if path.stat().st_size > MAX_BYTES:
                    raise SystemExit(f"{path}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
                print(path, path.stat().st_size, "bytes")
        browser.close()


if __name__ == "__main__":
    main()
