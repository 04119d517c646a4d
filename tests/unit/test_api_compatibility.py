from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from drafter_operator.api.compatibility import breaking_changes
from drafter_operator.api.crd import custom_resource_definition

RELEASED = sorted((Path(__file__).parents[2] / "crds/released").glob("v*.yaml"))


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    (version,) = definition["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.stem)
def test_the_api_only_adds_to_what_was_released(released: Path) -> None:
    before = schema(yaml.safe_load(released.read_text()))

    assert list(breaking_changes(before, schema(custom_resource_definition()))) == []


def test_there_is_a_release_to_compare_with() -> None:
    assert RELEASED


def edited(*path: str, **keywords: Any) -> dict[str, Any]:
    changed = copy.deepcopy(schema(custom_resource_definition()))
    place = changed
    for name in path:
        place = place["properties"][name]
    for keyword, value in keywords.items():
        if value is None:
            place.pop(keyword)
        else:
            place[keyword] = value
    return changed


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (edited("spec", "training", "epochs", type="string"), ".spec.training.epochs: type"),
        (edited("spec", "training", "epochs", maximum=3), "maximum fell from"),
        (edited("spec", "training", "epochs", minimum=5), "minimum rose from"),
        (edited("spec", "training", "epochs", default=9), "default"),
        (edited("spec", "promotion", "mode", enum=["Auto"]), "Manual, Never left the enum"),
        (edited("spec", required=["target", "data", "storage", "suspend"]), "suspend became"),
        (edited("spec", "training", properties={}), ".spec.training.epochs: the field was removed"),
        (
            edited("spec", "benchmark", **{"x-kubernetes-validations": [{"rule": "false"}]}),
            "a rule was added: false",
        ),
    ],
)
def test_what_breaks_a_manifest_is_named(present: dict[str, Any], words: str) -> None:
    found = list(breaking_changes(schema(custom_resource_definition()), present))

    assert any(words in change for change in found), found


def test_a_new_optional_field_with_its_own_rule_is_no_break() -> None:
    rule = {"rule": "!has(self.novelty) || self.novelty != ''"}
    present = edited("spec", "benchmark")
    benchmark = present["properties"]["spec"]["properties"]["benchmark"]
    benchmark["properties"]["novelty"] = {"type": "string"}
    benchmark["x-kubernetes-validations"] = [*benchmark.get("x-kubernetes-validations", []), rule]

    assert list(breaking_changes(schema(custom_resource_definition()), present)) == []
