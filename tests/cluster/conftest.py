from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from running_sandbox import RunningSandbox

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    """An API server without a node, shared by all tests: each uses a namespace of its own."""
    sandbox = RunningSandbox(tmp_path_factory.mktemp("api")).start()
    yield sandbox
    sandbox.stop()


@pytest.fixture
def namespace(api: RunningSandbox) -> str:
    """A new, empty namespace of ``api``."""
    name = f"test-{next(_numbers)}"
    api.kubectl("create", "namespace", name)
    return name
