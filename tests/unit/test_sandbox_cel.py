from __future__ import annotations

from typing import Any

import pytest

from drafter_sandbox.cel import check_rules, compile_problem

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "text": {"type": "string"},
        "note": {"type": "string", "nullable": True},
        "size": {"type": "string", "x-kubernetes-int-or-string": True},
        "when": {"type": "string", "format": "date-time"},
        "wait": {"type": "string", "format": "duration"},
        "namespace": {"type": "string"},
        "max-depth": {"type": "integer"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "words": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"on": {"type": "boolean"}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
VALUE: dict[str, Any] = {
    "metadata": {"name": "run", "uid": "hidden"},
    "count": 3,
    "ratio": 1,
    "text": "Abc-1",
    "note": None,
    "size": "2Gi",
    "when": "2026-01-02T03:04:05Z",
    "wait": "90s",
    "namespace": "ns",
    "max-depth": 4,
    "list": [1, 2, 3],
    "words": ["a", "b"],
    "inner": {"on": True},
    "labels": {"app": "x", "a.b/c": "y"},
}


def messages(rule: str | dict[str, Any], old: Any = None, value: Any = VALUE) -> list[str]:
    entry = rule if isinstance(rule, dict) else {"rule": rule}
    schema = {**SCHEMA, "x-kubernetes-validations": [entry]}
    return [f"{cause.field}: {cause.message}" for cause in check_rules(schema, value, old)]


@pytest.mark.parametrize(
    "rule",
    [
        "self.metadata.name == 'run' && !has(self.metadata.uid)",
        "has(self.inner.on) && !has(self.inner.off)",
        "has(self.inner) && !has(self.missing)",
        "self.count in [1, 3] && !(self.count in [2])",
        "self.ratio >= 0.5 && self.ratio <= 1.0",
        "self.ratio < 2 && self.ratio > 0",
        "double(self.count) / 2.0 == 1.5",
        "self.count % 2 == 1 && self.count * 2 - 1 == 5",
        "self.text.startsWith('A') && self.text.endsWith('1') && self.text.contains('bc')",
        "self.text.matches('^[A-Za-z]+-[0-9]$') && !self.text.matches('^[a-z]+$')",
        "self.text.lowerAscii() == 'abc-1' && self.text.upperAscii() == 'ABC-1'",
        "self.text.split('-').size() == 2 && self.text.split('-')[1] == '1'",
        "self.text.substring(0, 3) == 'Abc' && self.text.substring(4) == '1'",
        "self.text.replace('-', '+') == 'Abc+1' && self.text.indexOf('-') == 3",
        "self.text.charAt(1) == 'b' && ' x '.trim() == 'x' && self.text.find('[0-9]') == '1'",
        "self.note == null",
        "type(self.size) == string && quantity(self.size).isGreaterThan(quantity('1Gi'))",
        "isQuantity(self.size) && !isQuantity('big')",
        "quantity('1k').compareTo(quantity('1')) == 1",
        "self.when < timestamp('2027-01-01T00:00:00Z') && self.wait == duration('1m30s')",
        "self.__namespace__ == 'ns' && self.max__dash__depth == 4",
        "self.list.all(x, x > 0) && self.list.exists(x, x == 2)",
        "self.list.all(x, self.list.exists_one(y, y == x))",
        "self.list.map(x, x * 2) == [2, 4, 6] && self.list.filter(x, x > 1).size() == 2",
        "self.list.sum() == 6 && self.list.max() == 3 && self.list.min() == 1",
        "self.list.isSorted() && self.words.join(',') == 'a,b' && self.list.indexOf(3) == 2",
        "'app' in self.labels && self.labels['a.b/c'] == 'y' && self.labels.all(k, size(k) < 9)",
        "size(self.words) == 2 && self.words + ['c'] == ['a', 'b', 'c']",
        "self.count > 2 ? self.inner.on : false",
        "!has(self.missing) || self.missing > 2",
        "string(self.count) + 'x' == '3x' && int('7') == 7",
    ],
)
def test_a_rule_that_holds_has_no_message(rule: str) -> None:
    assert compile_problem(rule) is None
    assert messages(rule) == []


def test_messages_paths_and_reasons() -> None:
    assert messages("self.count > 5") == [
        '<nil>: Invalid value: "object": failed rule: self.count > 5'
    ]
    assert messages({"rule": "false", "message": "no", "fieldPath": ".count"}) == [
        'count: Invalid value: "object": no'
    ]
    assert messages({"rule": "false", "message": "no", "reason": "FieldValueForbidden"}) == [
        "<nil>: Forbidden: no"
    ]
    dynamic = {"rule": "false", "messageExpression": "'count is ' + string(self.count)"}
    assert messages(dynamic) == ['<nil>: Invalid value: "object": count is 3']
    broken = {"rule": "false", "messageExpression": "self.missing", "message": "fixed"}
    assert messages(broken) == ['<nil>: Invalid value: "object": fixed']


def test_a_rule_that_cannot_be_evaluated_is_broken() -> None:
    (message,) = messages("self.missing > 2")
    assert "evaluating rule: self.missing > 2" in message


def test_transition_rules_wait_for_an_old_object() -> None:
    rule = "self.count >= oldSelf.count"
    assert messages(rule) == []
    assert messages(rule, old={**VALUE, "count": 2}) == []
    assert len(messages(rule, old={**VALUE, "count": 9})) == 1
    optional = {
        "rule": "!oldSelf.hasValue() || oldSelf.value().count == self.count",
        "optionalOldSelf": True,
    }
    assert messages(optional) == []
    assert len(messages(optional, old={**VALUE, "count": 9})) == 1


def test_transition_rules_of_nested_values_compare_with_their_own_past() -> None:
    schema = {
        "type": "object",
        "properties": {
            "fixed": {
                "type": "array",
                "items": {"type": "integer"},
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}],
            },
            "parts": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
                    "x-kubernetes-validations": [
                        {"rule": "self.n >= oldSelf.n", "message": "n may only grow"}
                    ],
                },
            },
        },
    }
    old = {"fixed": [1, 2], "parts": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}
    moved = {"fixed": [1, 2], "parts": [{"name": "b", "n": 2}, {"name": "a", "n": 1}]}
    assert check_rules(schema, moved, old) == []
    assert check_rules(schema, old, {}) == []
    changed = {"fixed": [2], "parts": [{"name": "new", "n": 0}, {"name": "b", "n": 1}]}
    fields = [cause.field for cause in check_rules(schema, changed, old)]
    assert fields == ["fixed", "parts[1]"]


def test_what_has_not_changed_is_not_held_to_newer_rules() -> None:
    assert messages("self.count > 5", old=VALUE) == []
    assert len(messages("self.count > 5", old={**VALUE, "text": "other"})) == 1


def test_what_is_no_expression_is_found_out_early() -> None:
    assert compile_problem("self.(") is not None
    assert compile_problem("self.count >") is not None
