from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden YAML anew")


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with tokenizer and chat template; do not change it."""
    # torch and transformers take seconds to import; most tests do without.
    from drafter_sandbox.quickstart.tiny_target import make_tiny_target

    return make_tiny_target(tmp_path_factory.mktemp("target") / "tiny")
