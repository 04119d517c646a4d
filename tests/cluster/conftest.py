from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from node_cluster import NodeCluster, write_images
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


@pytest.fixture(scope="session")
def _sandbox_with_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSandbox]:
    directory = tmp_path_factory.mktemp("node")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTER_SANDBOX_BACKOFF_SECONDS", "0.2")
        arguments = ["--cpus", "2", "--memory", "4Gi"]
        found = RunningSandbox(directory / "state", write_images(directory), arguments).start()
    yield found
    found.stop()


@pytest.fixture
def node(_sandbox_with_node: RunningSandbox) -> NodeCluster:
    """A new, empty namespace of a sandbox with a node that all tests share."""
    name = f"node-{next(_numbers)}"
    cluster = NodeCluster(_sandbox_with_node, name)
    cluster.core.create_namespace({"metadata": {"name": name}})
    return cluster
