"""What ``helm test`` says of an installation that does not work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drafter_operator.cluster.api import ApiError, KubernetesApi
from drafter_operator.installation_check import (
    BROKEN,
    SPEC,
    CheckFailedError,
    check_definition,
    check_operator,
)

DENIED = (
    'User "system:serviceaccount:d:t" cannot create resource "drafterruns" in API group'
    ' "drafters.dev" in the namespace "d"'
)
COMPLETED = {"spec": SPEC | {"serving": {"depths": [16]}}}


class StandInApi(KubernetesApi):
    """Answers a good run and a broken one with a body or an HTTP status."""

    def __init__(self, good: Any, broken: Any) -> None:
        self.good, self.broken = good, broken
        self.queries: list[Any] = []

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        self.queries.append(options["query"])
        answer = self.broken if options["body"]["spec"] == BROKEN else self.good
        if isinstance(answer, tuple):
            raise ApiError(method, path, *answer)
        return json.dumps(answer).encode()


async def test_a_definition_that_completes_and_refuses_is_right_and_nothing_is_kept() -> None:
    api = StandInApi(COMPLETED, (422, "depths must be distinct"))
    await check_definition(api, "d")
    assert [query["dryRun"] for query in api.queries] == ["All", "All"]


@pytest.mark.parametrize(
    ("good", "broken", "words"),
    [
        ((404, "not found"), None, "drafterruns.drafters.dev is not installed"),
        ((403, DENIED), None, "may not create drafterruns.drafters.dev in the namespace d"),
        ((0, "no answer"), None, "cannot be applied"),
        ({"spec": SPEC}, None, "sets no defaults"),
        (COMPLETED, COMPLETED, "accepts a draft depth given twice"),
        (COMPLETED, (500, "the server is ill"), "the server is ill"),
    ],
)
async def test_what_is_wrong_is_named_with_the_way_out(good: Any, broken: Any, words: str) -> None:
    with pytest.raises(CheckFailedError, match=words):
        await check_definition(StandInApi(good, broken), "d")


def test_an_operator_that_does_not_answer_is_named() -> None:
    with pytest.raises(CheckFailedError, match=r"does not answer at http://127\.0\.0\.1:1 "):
        check_operator("http://127.0.0.1:1")
