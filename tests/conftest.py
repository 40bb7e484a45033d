"""Fixtures for tests of every folder."""
import os

import pytest


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    """A Hugging Face Hub of this machine (support/python/fake_hub.py) and an empty cache, both named by the environment, for
    the test and the programs that it starts. `fake_hub.cache` is the cache's directory."""
    from fake_hub import FakeHub
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    with FakeHub() as hub:
        hub.cache = tmp_path / "huggingface" / "hub"
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield hub
