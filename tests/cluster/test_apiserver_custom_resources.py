from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from running_sandbox import RunningSandbox

CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "engines.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {
            "plural": "engines",
            "singular": "engine",
            "kind": "Engine",
            "shortNames": ["eng"],
            "categories": ["all", "machines"],
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                    },
                },
                "additionalPrinterColumns": [
                    {"name": "Model", "type": "string", "jsonPath": ".spec.model"},
                    {
                        "name": "Ready",
                        "type": "string",
                        "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
                    },
                    {"name": "Depths", "type": "string", "jsonPath": ".spec.depths"},
                    {"name": "Since", "type": "date", "jsonPath": ".status.since"},
                    {"name": "Wide", "type": "integer", "jsonPath": ".spec.limit", "priority": 1},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "x-kubernetes-validations": [
                            {
                                "rule": "size(self.metadata.name) <= 20",
                                "message": "name leaves no room for suffixes",
                            }
                        ],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["model"],
                                "x-kubernetes-validations": [
                                    {
                                        "rule": "has(self.path) != has(self.image)",
                                        "message": "exactly one of path and image must be set",
                                    },
                                    {
                                        "rule": "!has(oldSelf.path) || self.path == oldSelf.path",
                                        "message": "path is immutable",
                                        "fieldPath": ".path",
                                        "reason": "FieldValueForbidden",
                                    },
                                    {
                                        "rule": "self.limit >= self.depths.size()",
                                        "messageExpression": "'limit ' + string(self.limit) +"
                                        " ' is below the number of depths'",
                                    },
                                ],
                                "properties": {
                                    "model": {
                                        "type": "string",
                                        "minLength": 2,
                                        "maxLength": 8,
                                        "pattern": "^[a-z]+$",
                                        "description": "What the engine runs.",
                                    },
                                    "path": {"type": "string"},
                                    "image": {"type": "string"},
                                    "replicas": {"type": "integer", "default": 1},
                                    "limit": {
                                        "type": "integer",
                                        "default": 9,
                                        "minimum": 1,
                                        "maximum": 99,
                                    },
                                    "rate": {
                                        "type": "number",
                                        "exclusiveMinimum": True,
                                        "minimum": 0,
                                    },
                                    "mode": {
                                        "type": "string",
                                        "enum": ["Auto", "Manual"],
                                        "default": "Auto",
                                    },
                                    "port": {"x-kubernetes-int-or-string": True},
                                    "note": {"type": "string", "nullable": True},
                                    "depths": {
                                        "type": "array",
                                        "default": [16, 10],
                                        "maxItems": 3,
                                        "items": {"type": "integer", "minimum": 2},
                                        "x-kubernetes-validations": [
                                            {
                                                "rule": "self.all(d, self.exists_one(e, e == d))",
                                                "message": "depths must be unique",
                                            }
                                        ],
                                    },
                                    "parts": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {
                                                "name": {"type": "string"},
                                                "size": {"type": "integer", "default": 7},
                                            },
                                        },
                                    },
                                    "tags": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "set",
                                        "items": {"type": "string"},
                                    },
                                    "free": {
                                        "type": "object",
                                        "x-kubernetes-preserve-unknown-fields": True,
                                    },
                                    "nested": {
                                        "type": "object",
                                        "default": {},
                                        "properties": {"on": {"type": "boolean", "default": True}},
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
            }
        ],
    },
}


def engine(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.org/v1alpha1",
        "kind": "Engine",
        "metadata": {"name": name},
        "spec": {"model": "llama", "path": "/models", **spec},
    }


@pytest.fixture(scope="module")
def engines(api: RunningSandbox) -> Iterator[RunningSandbox]:
    api.apply(CRD)
    api.kubectl("wait", "--for=condition=Established", "crd/engines.example.org", "--timeout=5s")
    yield api
    api.kubectl("delete", "crd", "engines.example.org")


def test_defaults_are_set_nested_ones_too(engines: RunningSandbox, namespace: str) -> None:
    engines.apply(engine(parts=[{"name": "a"}]), arguments=["-n", namespace])
    spec = engines.get("engine", "one", "-n", namespace)["spec"]
    assert spec["mode"] == "Auto"
    assert spec["depths"] == [16, 10]
    assert spec["nested"] == {"on": True}
    assert spec["parts"] == [{"name": "a", "size": 7}]


def test_unknown_fields_are_refused_warned_of_or_dropped(
    engines: RunningSandbox, namespace: str
) -> None:
    body = engine(colour="red", free={"any": "thing"})
    apply = ["-n", namespace, "apply", "-f", "-"]
    assert 'strict decoding error: unknown field "spec.colour"' in engines.refused(
        *apply, stdin=yaml.safe_dump(body)
    )
    done = engines.run("kubectl", *apply, "--validate=warn", stdin=yaml.safe_dump(body))
    assert 'Warning: unknown field "spec.colour"' in done.stderr
    spec = engines.get("engine", "one", "-n", namespace)["spec"]
    assert "colour" not in spec
    assert spec["free"] == {"any": "thing"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"depths": [1]},
            'The Engine "one" is invalid: spec.depths[0]: Invalid value: 1: spec.depths[0] in body'
            " should be greater than or equal to 2",
        ),
        ({"depths": [4, 4]}, "depths must be unique"),
        ({"depths": [2, 3, 4, 5]}, "spec.depths: Too many: 4: must have at most 3 items"),
        ({"depths": "many"}, "spec.depths in body must be of type array"),
        ({"limit": 100}, "should be less than or equal to 99"),
        ({"limit": 10**30}, "spec.limit"),
        ({"limit": 1}, "limit 1 is below the number of depths"),
        ({"rate": 0}, "should be greater than 0"),
        ({"mode": "Fast"}, 'Unsupported value: "Fast": supported values: "Auto", "Manual"'),
        ({"model": "x"}, "should be at least 2 chars long"),
        ({"model": "abcdefghi"}, "Too long: may not be more than 8 bytes"),
        ({"model": "ABC"}, "spec.model in body should match '^[a-z]+$'"),
        ({"model": None}, "spec.model: Required value"),
        ({"port": 1.5}, "spec.port in body must be of type integer,string"),
        ({"tags": ["a", "a"]}, 'spec.tags[1]: Duplicate value: "a"'),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, 'Duplicate value: {"name":"a"}'),
        ({"image": "x"}, "exactly one of path and image must be set"),
    ],
)
def test_values_that_break_a_rule_are_refused(
    engines: RunningSandbox, namespace: str, spec: dict[str, Any], message: str
) -> None:
    error = engines.refused("-n", namespace, "create", "-f", "-", stdin=json.dumps(engine(**spec)))
    assert message in error


def test_rules_see_the_name_and_the_old_object(engines: RunningSandbox, namespace: str) -> None:
    long = engine("a" * 21)
    assert "name leaves no room for suffixes" in engines.refused(
        "-n", namespace, "create", "-f", "-", stdin=json.dumps(long)
    )
    body = json.dumps(engine(note=None, port="http"))
    engines.kubectl("-n", namespace, "create", "-f", "-", stdin=body)
    error = engines.refused(
        "-n",
        namespace,
        "patch",
        "engine",
        "one",
        "--type=merge",
        "-p",
        '{"spec":{"path":"/elsewhere"}}',
    )
    assert "spec.path: Forbidden: path is immutable" in error
    engines.kubectl(
        "-n", namespace, "patch", "engine", "one", "--type=merge", "-p", '{"spec":{"limit":5}}'
    )
    assert engines.get("engine", "one", "-n", namespace)["spec"]["note"] is None


def test_status_is_written_through_its_subresource_only(
    engines: RunningSandbox, namespace: str
) -> None:
    body = engine()
    body["status"] = {"phase": "Faked"}
    engines.apply(body, arguments=["-n", namespace])
    found = engines.get("engine", "one", "-n", namespace)
    assert "status" not in found
    assert found["metadata"]["generation"] == 1
    patch = '{"status":{"phase":"Real"},"spec":{"limit":50}}'
    engines.kubectl(
        "-n",
        namespace,
        "patch",
        "engine",
        "one",
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    )
    found = engines.get("engine", "one", "-n", namespace)
    assert found["status"] == {"phase": "Real"}
    assert found["spec"]["limit"] == 9
    assert found["metadata"]["generation"] == 1
    engines.kubectl("-n", namespace, "scale", "engine/one", "--replicas=3")
    found = engines.get("engine", "one", "-n", namespace)
    assert found["spec"]["replicas"] == 3
    assert found["metadata"]["generation"] == 2


def test_columns_short_names_and_categories(engines: RunningSandbox, namespace: str) -> None:
    engines.apply(engine(), arguments=["-n", namespace])
    status = {
        "status": {
            "since": "2026-01-01T00:00:00Z",
            "conditions": [
                {"type": "Other", "status": "False"},
                {"type": "Ready", "status": "True"},
            ],
        }
    }
    engines.kubectl(
        "-n",
        namespace,
        "patch",
        "engine",
        "one",
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps(status),
    )
    header, row = engines.kubectl("-n", namespace, "get", "eng").splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "DEPTHS", "SINCE"]
    assert row.split()[:4] == ["one", "llama", "True", "[16,10]"]
    assert row.split()[4][-1] in "dhms"
    assert "WIDE" in engines.kubectl("-n", namespace, "get", "eng", "-o", "wide")
    assert "engine.example.org/one" in engines.kubectl("-n", namespace, "get", "all")
    assert "one" in engines.kubectl("-n", namespace, "get", "machines")


def test_explain_and_describe(engines: RunningSandbox, namespace: str) -> None:
    assert "What the engine runs." in engines.kubectl("explain", "engine.spec.model")
    engines.apply(engine(), arguments=["-n", namespace])
    assert "Model:" in engines.kubectl("-n", namespace, "describe", "engine", "one")


def test_server_side_apply_merges_keyed_lists_of_a_crd(
    engines: RunningSandbox, namespace: str
) -> None:
    def apply(manager: str, *parts: dict[str, Any], tags: list[str]) -> None:
        body = engine(parts=list(parts), tags=tags)
        arguments = ["-n", namespace, "--server-side", f"--field-manager={manager}"]
        engines.apply(body, arguments=arguments)

    apply("first", {"name": "a", "size": 1}, tags=["x"])
    apply("second", {"name": "b", "size": 2}, tags=["y"])
    spec = engines.get("engine", "one", "-n", namespace)["spec"]
    assert spec["parts"] == [{"name": "a", "size": 1}, {"name": "b", "size": 2}]
    assert spec["tags"] == ["x", "y"]
    apply("first", tags=[])
    spec = engines.get("engine", "one", "-n", namespace)["spec"]
    assert spec["parts"] == [{"name": "b", "size": 2}]
    assert spec["tags"] == ["y"]
    error = engines.run(
        "kubectl",
        "-n",
        namespace,
        "apply",
        "--server-side",
        "--field-manager=third",
        "-f",
        "-",
        stdin=json.dumps(engine(parts=[{"name": "b", "size": 3}])),
        check=False,
    ).stderr
    assert 'conflict with "second" using example.org/v1alpha1: .spec.parts[name="b"].size' in error
    unknown = engines.run(
        "kubectl",
        "-n",
        namespace,
        "apply",
        "--server-side",
        "-f",
        "-",
        stdin=json.dumps(engine(colour="red")),
        check=False,
    ).stderr
    assert ".spec.colour: field not declared in schema" in unknown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda crd: crd["metadata"].update(name="wrong.example.org"), "spec.names.plural"),
        (
            lambda crd: crd["spec"]["versions"][0].update(storage=False),
            "exactly one version marked as storage version",
        ),
        (
            lambda crd: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
                "spec"
            ]["x-kubernetes-validations"].append({"rule": "self.("}),
            "compilation failed",
        ),
        (
            lambda crd: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
                "spec"
            ]["properties"]["limit"].update(default="nine"),
            "default",
        ),
        (
            lambda crd: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
                "spec"
            ]["properties"]["tags"].pop("items"),
            "items: Required value",
        ),
    ],
    ids=["name", "storage", "rule", "default", "items"],
)
def test_a_definition_that_cannot_work_is_refused(
    api: RunningSandbox, change: Any, message: str
) -> None:
    crd = copy.deepcopy(CRD)
    crd["metadata"]["name"] = "motors.example.org"
    crd["spec"]["names"] = {"plural": "motors", "kind": "Motor"}
    change(crd)
    assert message in api.refused("create", "-f", "-", stdin=json.dumps(crd))


def test_deleting_a_definition_removes_its_objects(api: RunningSandbox, namespace: str) -> None:
    crd = copy.deepcopy(CRD)
    crd["metadata"]["name"] = "motors.example.org"
    crd["spec"]["names"] = {"plural": "motors", "kind": "Motor"}
    api.apply(crd)
    api.apply({**engine(), "kind": "Motor"}, arguments=["-n", namespace])
    api.kubectl("delete", "crd", "motors.example.org")
    path = f"/apis/example.org/v1alpha1/namespaces/{namespace}/motors"
    assert "NotFound" in api.refused("get", "--raw", path)
    api.apply(crd)
    assert api.get("motors", "-n", namespace)["items"] == []
    api.kubectl("delete", "crd", "motors.example.org")
