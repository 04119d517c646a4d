"""The CustomResourceDefinition: structure, rules, and what may change once a run has started."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from drafter_operator.api.crd import PRINTER_COLUMNS, custom_resource_definition
from drafter_operator.generate import REPOSITORY, generated_files
from drafter_sandbox import cel, crd, schemas
from drafter_sandbox.validation import validate

VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from nodes(schema[name], f"{path}[]")


NODES = dict(nodes(SCHEMA))


def complete(**sections: Any) -> dict[str, Any]:
    """Return a run as the API server keeps it: with defaults."""
    spec: dict[str, Any] = {
        "target": {"path": "model"},
        "storage": {"claimTemplate": {"size": "1Gi"}},
        "data": {"prompts": {"path": "prompts.jsonl"}},
    }
    for name, section in sections.items():
        spec[name] = spec.get(name, {}) | section
    body = {"metadata": {"name": "r"}, "spec": spec}
    schemas.apply_defaults(SCHEMA, body)
    return body


def refusals(body: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    schema = schemas.custom_schema(SCHEMA)
    causes = validate(schema, body) or cel.check_rules(schema, body, old)
    return [f"{cause.field}: {cause.message}" for cause in causes]


@pytest.mark.parametrize("path", generated_files())
def test_a_generated_file_has_not_drifted_from_the_models(path: Any) -> None:
    assert (REPOSITORY / path).read_text() == generated_files()[path], "run make generate"


def test_an_api_server_would_install_the_definition() -> None:
    assert crd.problems(custom_resource_definition()) == []


def test_the_schema_is_structural() -> None:
    for path, node in NODES.items():
        for forbidden in ("$ref", "title", "anyOf", "oneOf", "allOf", "uniqueItems", "nullable"):
            assert forbidden not in node, path
        for name in node.get("required", []):
            assert "default" not in node["properties"][name], f"{path}.{name}"


def test_everything_a_rule_walks_over_is_bounded() -> None:
    for path, node in NODES.items():
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string" and path.startswith((".spec", ".status")):
            assert {"maxLength", "enum", "format"} & set(node), path
        if node.get("type") == "integer" and path.startswith(".spec") and "default" in node:
            assert {"minimum", "maximum"} <= set(node), path


def test_a_status_has_no_defaults_and_every_field_is_explained() -> None:
    for path, node in NODES.items():
        if path.startswith(".status"):
            assert "default" not in node, path
        if path.startswith((".spec", ".status")) and not path.endswith("]"):
            assert node.get("description"), path


def test_the_columns_read_fields_that_exist_and_none_by_position() -> None:
    for _, _, path, _ in PRINTER_COLUMNS:
        assert "[" not in path
        assert path in NODES or path == ".metadata.creationTimestamp"


def test_only_rules_on_what_always_was_there_compare_with_the_past() -> None:
    # A transition rule below a field that may be absent is skipped when the field appears.
    for path, node in NODES.items():
        for rule in node.get(cel.RULES, []):
            assert "oldSelf" not in rule["rule"] or path == "", path


def test_the_smallest_run_gets_every_default() -> None:
    spec = complete()["spec"]
    assert spec["serving"]["depths"] == [16, 10, 5]
    assert spec["training"]["pod"]["image"].startswith("ghcr.io/")
    assert spec["promotion"] == {"mode": "Auto", "minimumSpeedup": "1.05"}
    assert refusals(complete()) == []


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"target": {"path": "../other"}}, "stays inside the volume"),
        ({"target": {"path": "a/../../b"}}, "stays inside the volume"),
        ({"target": {"path": "/etc"}}, "stays inside the volume"),
        ({"target": {"claimName": "Not A Name"}}, "spec.target.claimName"),
        ({"target": {"revision": "main"}}, "revision needs hubId"),
        ({"training": {"nodes": 2}}, "accessMode ReadWriteMany"),
        ({"training": {"learningRate": "0"}}, "learningRate must be above 0"),
        ({"data": {"maximumLength": 512}}, "maximumNewTokens must be below maximumLength"),
        ({"promotion": {"candidate": "depth-7"}}, "one of serving.depths"),
        ({"serving": {"extraArguments": ["--tensor-parallel-size", "2"]}}, "the operator itself"),
        ({"serving": {"extraArguments": ["--speculative-num-st=3"]}}, "the operator itself"),
        ({"serving": {"extraArguments": ["--model=x"]}}, "the operator itself"),
        ({"hiddenStates": {"auxiliaryLayers": [3, 3, 5]}}, "must be distinct"),
        ({"benchmark": {"concurrencies": [1, 1]}}, "must be distinct"),
        ({"training": {"pod": {"resources": {"limits": {"cpu": 0.5}}}}}, "limits.cpu"),
        ({"training": {"pod": {"env": [{"value": "x"}]}}}, "env[0].name"),
    ],
)
def test_what_would_only_fail_later_is_refused(sections: dict[str, Any], message: str) -> None:
    found = refusals(complete(**sections))
    assert any(message in text for text in found), found


@pytest.mark.parametrize(
    "sections",
    [
        {"serving": {"extraArguments": ["--speculative-draft-attention-backend=triton", "-v"]}},
        {"serving": {"extraArguments": ["--mem-fraction-static", "0.8", "--enable-mixed-chunk"]}},
        {"promotion": {"mode": "Manual", "candidate": "depth-10"}},
        {"training": {"pod": {"resources": {"limits": {"cpu": 4, "memory": "64Gi"}}}}},
    ],
)
def test_what_is_right_is_accepted(sections: dict[str, Any]) -> None:
    assert refusals(complete(**sections)) == []


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("spec.target", {"target": {"path": "another"}}),
    ("spec.data", {"data": {"limit": 5}}),
    ("spec.training", {"training": {"epochs": 9}}),
    ("spec.serving.depths", {"serving": {"depths": [4]}}),
    ("spec.benchmark", {"benchmark": {"requests": 9}}),
]


@pytest.mark.parametrize(("field", "change"), CHANGES)
def test_a_started_run_keeps_its_settings(field: str, change: dict[str, Any]) -> None:
    old = complete() | {"status": {"steps": [{"name": "Prepare", "state": "Running"}]}}
    new = complete(**change) | {"status": old["status"]}
    assert any(f"{field} is immutable" in text for text in refusals(new, old))


@pytest.mark.parametrize(("field", "change"), CHANGES)
@pytest.mark.parametrize("status", [{}, {"steps": [{"name": "Prepare", "state": "Pending"}]}])
def test_a_typing_error_can_be_mended_before_the_start(
    field: str, change: dict[str, Any], status: dict[str, Any]
) -> None:
    old = complete() | {"status": status}
    assert refusals(complete(**change) | {"status": status}, old) == []


def test_a_started_run_can_be_suspended_and_promoted() -> None:
    old = complete() | {"status": {"steps": [{"name": "Prepare", "state": "Succeeded"}]}}
    new = copy.deepcopy(old)
    new["spec"]["suspend"] = True
    new["spec"]["promotion"]["candidate"] = "depth-5"
    new["spec"]["serving"]["startupTimeoutSeconds"] = 60
    assert refusals(new, old) == []
