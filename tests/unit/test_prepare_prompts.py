import json
import re
from pathlib import Path
from typing import Any

import pytest

from drafter_jobs.prompts import PromptsError, parse_prompts, rows_of_dataset, split_rows

EXAMPLES = Path(__file__).parents[2] / "examples/prompts"


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def refusal(content: bytes) -> str:
    with pytest.raises(PromptsError) as caught:
        parse_prompts(content, "prompts.jsonl")
    return str(caught.value)


def test_prompts_and_conversations_are_read() -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüß Gott"},
    ]
    rows = parse_prompts(
        b"\xef\xbb\xbf" + lines({"id": "a", "prompt": "Hello"}, {"messages": conversation}),
        "prompts.jsonl",
    )
    assert [row.id for row in rows] == ["a", "line-2"]
    assert rows[0].messages == ({"role": "user", "content": "Hello"},)
    assert list(rows[1].messages) == conversation
    assert [row.as_json() for row in rows] == [
        {"id": "a", "prompt": "Hello"},
        {"id": "line-2", "messages": conversation},
    ]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_no_prompt_at_all(content: bytes) -> None:
    assert "prompts.jsonl holds no prompt" in refusal(content)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"not json\n", "not JSON"),
        (b'{"id": "x", "prompt": "caf\xe9"}\n', "not UTF-8"),
        (b'["a list"]\n', "a JSON list, not an object"),
        (b'{"id": "x"}\n', 'exactly one of "prompt" and "messages"'),
        (b'{"id": "x", "prompt": "a", "messages": []}\n', 'exactly one of "prompt"'),
        (b'{"id": "x", "prompt": "  "}\n', "prompt is empty"),
        (b'{"id": "x", "prompt": 7}\n', "prompt is empty or not text"),
        (b'{"id": "x", "messages": []}\n', "not a list of messages"),
        (b'{"id": "x", "messages": ["a"]}\n', "role None is none of"),
        (b'{"id": "x", "messages": [{"role": "boss", "content": "a"}]}\n', "role 'boss'"),
        (b'{"id": [], "prompt": "a"}\n', '"id" is []'),
        (b'{"id": "x", "prompt": "\\ud800"}\n', "surrogate"),
        (lines({"id": "a", "prompt": "again"}), "id 'a' is also on line 1"),
    ],
)
def test_one_bad_line_in_the_middle_is_named(bad: bytes, why: str) -> None:
    message = refusal(lines({"id": "a", "prompt": "1"}) + bad + lines({"id": "b", "prompt": "2"}))
    assert message.startswith("prompts.jsonl: 1 of 3 lines cannot be used: line 2: ")
    assert why in message


def test_ten_bad_lines_are_named_and_all_are_counted() -> None:
    message = refusal(b"{\n" * 12 + lines({"prompt": "good"}))
    assert "12 of 13 lines" in message
    assert re.findall(r"line (\d+): not JSON", message) == [str(n) for n in range(1, 11)]


def test_a_column_of_a_data_set() -> None:
    rows = rows_of_dataset(["Hi", [{"role": "user", "content": "Ho"}]], "text", "train")
    assert [(row.id, row.messages[0]["content"]) for row in rows] == [
        ("train-0", "Hi"),
        ("train-1", "Ho"),
    ]
    with pytest.raises(PromptsError, match=r"train, row 0, field 'text': "):
        rows_of_dataset([3], "text", "train")


def test_the_split_depends_on_ids_and_seed_only() -> None:
    rows = parse_prompts(lines(*({"id": i, "prompt": f"p{i}"} for i in range(50))), "p")
    training, held_out = split_rows(rows, 0.1, seed=0)
    assert len(held_out) == 5
    assert {row.id for row in training} | {row.id for row in held_out} == {row.id for row in rows}
    assert split_rows(rows[::-1], 0.1, seed=0) == (training, held_out)
    assert split_rows(rows, 0.1, seed=1) != (training, held_out)
    assert [row.id for row in training] != sorted(row.id for row in training)


def test_one_prompt_is_always_left_for_training() -> None:
    rows = parse_prompts(lines({"prompt": "only"}), "p")
    assert split_rows(rows, 0.9, seed=0) == (rows, [])


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def test_example_prompts_are_many_distinct_and_split_cleanly() -> None:
    training, held_out = (
        parse_prompts((EXAMPLES / name).read_bytes(), name)
        for name in ("train.jsonl", "held_out.jsonl")
    )
    assert len(training) >= 400
    assert len(held_out) >= 40
    everything = [row.messages[0]["content"] for row in [*training, *held_out]]
    assert len({words(text) for text in everything}) == len(everything)
    assert len({row.id for row in [*training, *held_out]}) == len(everything)
    assert len({row.id.rsplit("-", 1)[0] for row in training}) >= 10
