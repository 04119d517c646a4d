from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from running_sandbox import RunningSandbox

PATH = "/api/v1/namespaces/default/configmaps"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"


class Door:
    """Sends raw requests."""

    def __init__(self, sandbox: RunningSandbox) -> None:
        config = yaml.safe_load(sandbox.kubeconfig.read_text())
        self._url = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]
        self._tls = ssl._create_unverified_context()

    def __call__(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, dict[str, Any]]:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = Request(self._url + path, content, headers, method=method)
        try:
            with urlopen(request, context=self._tls, timeout=20) as response:
                return response.status, json.loads(response.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def door(api: RunningSandbox) -> Iterator[Door]:
    door = Door(api)
    door("POST", PATH, {"metadata": {"name": "target"}, "data": {"a": "1"}})
    yield door
    door("DELETE", f"{PATH}/target")


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "code"),
    [
        ("POST", PATH, b"{", "application/json", 400),
        ("POST", PATH, b'{"data": NaN}', "application/json", 400),
        ("POST", PATH, b"[]", "application/json", 400),
        ("POST", PATH, b"", "application/json", 400),
        ("POST", PATH, b"\xff\xfe", "application/json", 400),
        ("POST", PATH, b"x", "text/plain", 415),
        ("POST", PATH, b"k8s\x00\xff", "application/vnd.kubernetes.protobuf", 400),
        ("POST", PATH, b"other", "application/vnd.kubernetes.protobuf", 400),
        ("POST", PATH, {"metadata": []}, "application/json", 400),
        ("POST", PATH, {"metadata": {}}, "application/json", 422),
        ("POST", PATH, {"metadata": {"name": 5}}, "application/json", 422),
        ("POST", PATH, {"metadata": {"name": "x", "labels": "a"}}, "application/json", 422),
        ("POST", PATH, {"metadata": {"name": "x", "labels": {"a": "!"}}}, "application/json", 422),
        ("POST", PATH, {"metadata": {"name": "x"}, "data": [1]}, "application/json", 422),
        ("POST", PATH, {"metadata": {"name": "x"}, "data": {"a": 1}}, "application/json", 422),
        ("POST", PATH, {"kind": "Secret", "metadata": {"name": "x"}}, "application/json", 400),
        (
            "POST",
            PATH,
            {"metadata": {"name": "x", "namespace": "other"}},
            "application/json",
            400,
        ),
        ("POST", PATH + "?dryRun=Some", {"metadata": {"name": "x"}}, "application/json", 400),
        ("POST", PATH.replace("default", "nowhere"), {"metadata": {"name": "x"}}, MERGE, 404),
        ("POST", JOBS, {"metadata": {"name": "x"}}, "application/json", 422),
        ("POST", JOBS, {"metadata": {"name": "x"}, "spec": 3}, "application/json", 422),
        (
            "POST",
            JOBS,
            {"metadata": {"name": "x"}, "spec": {"template": {"spec": {"containers": ["a"]}}}},
            "application/json",
            422,
        ),
        ("POST", CRDS, {"metadata": {"name": "x.y"}}, "application/json", 422),
        (
            "POST",
            CRDS,
            {"metadata": {"name": "x.y"}, "spec": {"group": "y", "versions": []}},
            "application/json",
            422,
        ),
        ("PUT", f"{PATH}/target", {"metadata": {"name": "other"}}, "application/json", 400),
        ("PUT", f"{PATH}/missing", {"metadata": {"name": "missing"}}, "application/json", 404),
        (
            "PUT",
            f"{PATH}/target",
            {"metadata": {"name": "target", "resourceVersion": "1"}},
            "application/json",
            409,
        ),
        ("PATCH", f"{PATH}/target", {"metadata": {"uid": "other"}}, MERGE, 409),
        ("PATCH", f"{PATH}/target", [], MERGE, 400),
        ("PATCH", f"{PATH}/target", {}, "application/json-patch+json", 400),
        ("PATCH", f"{PATH}/target", [{"op": "bad"}], "application/json-patch+json", 400),
        (
            "PATCH",
            f"{PATH}/target",
            [{"op": "test", "path": "/data/a", "value": "2"}],
            "application/json-patch+json",
            422,
        ),
        ("PATCH", f"{PATH}/target", {}, "application/json", 415),
        ("PATCH", f"{PATH}/target", b"a: [", "application/apply-patch+yaml", 400),
        ("PATCH", f"{PATH}/target", b"- a", "application/apply-patch+yaml", 400),
        ("PATCH", PATH, {}, MERGE, 405),
        ("DELETE", f"{PATH}/missing", None, "application/json", 404),
        ("DELETE", f"{PATH}/target", [1], "application/json", 400),
        ("DELETE", f"{PATH}/target?propagationPolicy=Slow", None, "application/json", 400),
        ("GET", f"{PATH}?limit=many", None, "application/json", 400),
        ("GET", f"{PATH}?continue=zzz", None, "application/json", 400),
        ("GET", f"{PATH}?labelSelector=a%20b%20c", None, "application/json", 400),
        ("GET", f"{PATH}?fieldSelector=name", None, "application/json", 400),
        ("GET", "/api/v1/nothing", None, "application/json", 404),
        ("GET", "/apis/example.org/v1", None, "application/json", 404),
        ("GET", f"{PATH}/target/scale", None, "application/json", 404),
        ("GET", "/somewhere/else/entirely/here", None, "application/json", 404),
    ],
)
def test_a_bad_request_gets_a_status_that_says_so(
    door: Door, method: str, path: str, body: Any, kind: str, code: int
) -> None:
    status, answer = door(method, path, body, kind)
    assert (status, answer["kind"], answer["status"]) == (code, "Status", "Failure"), answer
    assert answer["code"] == code
    assert answer["message"]
    assert door("GET", f"{PATH}/target")[1]["data"] == {"a": "1"}
