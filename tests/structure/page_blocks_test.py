"""Every block of the pages says whether it can be pasted. tests/support/python/page_blocks.py explains the names."""
import os
import pathlib

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])

import page_blocks

KNOWN = {"sh", "console", "text", "", "yaml", "json", "python", "cpp", "proto", "ini"}


def test_every_block_has_a_name_that_the_pages_use():
    wrong = [f"{block.place}: ```{block.language}" for block in page_blocks.all_blocks(SOURCE)
             if block.language not in KNOWN]
    assert not wrong, wrong


def test_a_block_of_commands_says_whether_it_can_be_pasted():
    wrong = [f"{block.place}: name it sh (it is run by a test), console (it needs more than a test has) or text"
             for block in page_blocks.all_blocks(SOURCE) if block.language == "" and block.names_programs()]
    assert not wrong, "\n".join(wrong)


def test_what_is_pasted_has_no_placeholder():
    placeholders = ("NAME", "step_N", "HOST:PORT", "CONFIG", " DIR", " ...", "RUN_OR", "CAPTURE")
    wrong = [f"{block.place}: {line}" for block in page_blocks.all_blocks(SOURCE) if block.language == "sh"
             for line in block.commands() for placeholder in placeholders
             if placeholder in line.split(" #")[0]]
    assert not wrong, "\n".join(wrong)
