from __future__ import annotations

import json
from typing import Any

import pytest

from drafter_operator.cluster.api import ApiError, KubernetesApi
from drafter_operator.cluster.lease import LeaseLostError, LeaseTimes, OperatorLease

TIMES = LeaseTimes(duration=15, deadline=10, retry=0)


class Server:
    """A server with one Lease, and a clock."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.now = 0.0
        self.down = False

    def answer(self, method: str, path: str, body: Any) -> bytes:
        if self.down:
            raise ApiError(method, path, 0, "no answer")
        if method == "GET":
            if self.lease is None:
                raise ApiError(method, path, 404, "there is none")
            return json.dumps(self.lease).encode()
        present = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != present:
            raise ApiError(method, path, 409, "the object has been modified")
        self.version += 1
        metadata = body["metadata"] | {"resourceVersion": str(self.version)}
        self.lease = body | {"metadata": metadata}
        return b"{}"

    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()

    async def request(
        _: KubernetesApi, method: str, path: str, *, body: Any = None, **__: Any
    ) -> bytes:
        return made.answer(method, path, body)

    monkeypatch.setattr(KubernetesApi, "request", request)
    return made


def lease(server: Server, identity: str) -> OperatorLease:
    api = KubernetesApi(client=None)
    return OperatorLease(api, "n", "drafter-operator", identity, TIMES, lambda: server.now)


async def takes(candidate: OperatorLease) -> bool:
    return await candidate._try()


async def test_the_first_holds_it_and_the_second_stands_by(server: Server) -> None:
    first, second = lease(server, "first"), lease(server, "second")
    await first.acquire()

    assert first.is_held()
    assert not await takes(second)
    assert not second.is_held()
    assert server.holder() == "first"


async def test_a_silent_holder_stops_before_another_takes_over(server: Server) -> None:
    first, second = lease(server, "first"), lease(server, "second")
    await first.acquire()
    assert not await takes(second)

    server.now = 10
    assert not first.is_held()
    assert not await takes(second)
    server.now = 15.1
    assert await takes(second)

    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 2
    with pytest.raises(LeaseLostError, match="held by second"):
        await first.keep()
    assert not first.is_held()


async def test_each_renewal_begins_the_wait_of_the_others_anew(server: Server) -> None:
    first, second = lease(server, "first"), lease(server, "second")
    await first.acquire()
    for server.now in (8.0, 16.0, 24.0):
        assert await takes(first)
        assert not await takes(second)


async def test_a_lease_given_back_is_taken_at_once(server: Server) -> None:
    first, second = lease(server, "first"), lease(server, "second")
    await first.acquire()
    assert not await takes(second)

    await first.give_back()

    assert not first.is_held()
    assert await takes(second)


async def test_of_two_that_take_it_at_once_one_wins(server: Server) -> None:
    first, second = lease(server, "first"), lease(server, "second")
    await first.acquire()
    await first.give_back()
    stale = json.loads(json.dumps(server.lease))
    assert await takes(first)

    # The second has read the Lease before the first took it.
    real = server.answer
    server.answer = lambda method, path, body: (  # type: ignore[method-assign]
        json.dumps(stale).encode() if method == "GET" else real(method, path, body)
    )
    assert not await takes(second)
    assert server.holder() == "first"


async def test_a_server_out_of_reach_ends_the_holding_at_its_deadline(server: Server) -> None:
    first = lease(server, "first")
    await first.acquire()
    server.down, server.now = True, 10.5

    with pytest.raises(LeaseLostError, match="not renewed for 10 s"):
        await first.keep()
