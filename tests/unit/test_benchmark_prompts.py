import json
from pathlib import Path
from typing import Any

import pytest

from drafter_jobs.benchmark import main
from drafter_jobs.benchmark_prompts import (
    PromptsUnusableError,
    TemplateMismatchError,
    load_prompts,
    matching_template,
    read_template_record,
)
from drafter_jobs.chat_template import ChatTemplate


@pytest.fixture
def dataset(tmp_path: Path, tiny_target: Path) -> Path:
    """A dataset's record of the tiny target's template."""
    from transformers import AutoTokenizer

    template = ChatTemplate.of(AutoTokenizer.from_pretrained(tiny_target), {})
    (tmp_path / "prepare.json").write_text(json.dumps(template.record()))
    return tmp_path


def write_prompts(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_prompts_are_rendered_as_in_training(dataset: Path, tiny_target: Path) -> None:
    from transformers import AutoTokenizer

    question = {"role": "user", "content": "How does an engine work?"}
    answer = {"role": "assistant", "content": "With fuel."}
    file = write_prompts(
        dataset / "p.jsonl",
        {"id": "a", "prompt": question["content"]},
        {"id": "b", "messages": [question, answer]},
        {"id": "c", "prompt": "left out"},
    )
    loaded = load_prompts(file, dataset, str(tiny_target), limit=2)
    assert [prompt.id for prompt in loaded.prompts] == ["a", "b"]
    text = AutoTokenizer.from_pretrained(tiny_target).decode(loaded.prompts[0].token_ids)
    expected = "<|im_start|>user\nHow does an engine work?<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected
    assert loaded.prompts[1].token_ids == loaded.prompts[0].token_ids


def test_other_template_is_a_mismatch(dataset: Path) -> None:
    class Tokenizer:
        chat_template = "{{ messages }}"

    record = read_template_record(dataset)
    with pytest.raises(TemplateMismatchError, match="restore the template, or train again"):
        matching_template(Tokenizer(), record, "model")
    Tokenizer.chat_template = ""
    with pytest.raises(TemplateMismatchError, match="no chat template"):
        matching_template(Tokenizer(), record, "model")


@pytest.mark.parametrize("content", [b"", b"{}", b"nonsense", b'{"prompt": "\xff"}'])
def test_unusable_prompts_are_named(dataset: Path, tiny_target: Path, content: bytes) -> None:
    file = dataset / "p.jsonl"
    file.write_bytes(content)
    with pytest.raises(PromptsUnusableError, match=r"p\.jsonl"):
        load_prompts(file, dataset, str(tiny_target), limit=2)


def test_dataset_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptsUnusableError, match=r"prepare\.json"):
        read_template_record(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"--depth": "1"}, "--depth is 1"),
        ({"--depth": "-4"}, "is not an integer of at least 0"),
        ({"--concurrencies": "1,1"}, "distinct positive integers"),
        ({"--concurrencies": "0"}, "distinct positive integers"),
        ({"--requests": "0"}, "not a positive integer"),
        ({"--baseline": "/nonexistent/baseline.json"}, "cannot read /nonexistent/baseline.json"),
    ],
)
def test_wrong_arguments_end_with_a_configuration_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    expected: str,
) -> None:
    options = {
        "--url": "http://127.0.0.1:1",
        "--candidate": "depth-4",
        "--depth": "4",
        "--prompts": str(tmp_path / "p.jsonl"),
        "--dataset": str(tmp_path),
        "--target": "unused",
        "--output": str(tmp_path / "out.json"),
        "--metrics-port": "0",
    } | changes
    log = tmp_path / "termination.json"
    monkeypatch.setenv("DRAFTER_TERMINATION_LOG", str(log))
    monkeypatch.setattr("sys.argv", ["drafter-benchmark", *sum(options.items(), ())])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 10
    message = json.loads(log.read_text())
    assert message["reason"] == "ConfigurationError"
    assert expected in message["message"]
