import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drafter_jobs import prepare
from drafter_jobs.draft_vocabulary import (
    VocabularyNotFilledError,
    check_filled,
    coverage,
    response_token_counts,
)
from drafter_jobs.length_batches import batches_by_rows, batches_by_tokens
from drafter_jobs.response_journal import ResponseJournal
from job_process import Ended, run_here, start, wait_for_event

QUESTIONS = [
    "What is fog?",
    "List the parts of an engine, please.",
    "Why?",
    "How does a sailor read the weather before a long walk in the mountains?",
    "Write a letter to a friend.",
    "Name a fruit",
    "Explain numbers such as 12 and 37 to the cat near the window, then stop.",
    "Say hello",
]

Run = Callable[..., Ended]


def write_prompts(path: Path, questions: list[str]) -> Path:
    rows = [{"id": f"q{n}", "prompt": text} for n, text in enumerate(questions)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(tiny_target: Path, tmp_path: Path) -> dict[str, object]:
    return {
        "--target": tiny_target,
        "--prompts": write_prompts(tmp_path / "prompts.jsonl", QUESTIONS),
        "--output": tmp_path / "dataset",
        "--maximum-new-tokens": 24,
        "--draft-vocabulary-size": 40,
        "--dtype": "float32",
        "--batch-size": 3,
        "--validation-share": 0.25,
    }


@pytest.fixture
def run(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ended]:
    def run_with(*flags: str, **changes: object) -> Ended:
        chosen = settings | {f"--{k.replace('_', '-')}": v for k, v in changes.items()}
        given = [part for pair in chosen.items() for part in pair if part is not None]
        return run_here(prepare.main, [*given, *flags], monkeypatch, tmp_path)

    return run_with


def record(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "prepare.json").read_bytes())
    return found


def samples(dataset: Path) -> dict[str, tuple[list[int], list[int]]]:
    import datasets

    table = datasets.load_from_disk(str(dataset)).with_format(None)
    rows = zip(table["input_ids"], table["loss_mask"], strict=True)
    return dict(zip(record(dataset)["samples"], rows, strict=True))


def test_the_data_set_holds_what_the_target_answers_alone(
    run: Run, tiny_target: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ended = run()

    assert ended.exit_code == 0
    result = ended.result
    assert (result["input"], result["written"], result["heldOut"]) == (6, 6, 2)
    assert result["skipped"] == result["failed"] == 0
    found = samples(tmp_path / "dataset")
    held_out = [
        json.loads(line) for line in (tmp_path / "dataset/held_out.jsonl").read_text().splitlines()
    ]
    assert sorted([*found, *(row["id"] for row in held_out)]) == [f"q{n}" for n in range(8)]
    tokenizer = AutoTokenizer.from_pretrained(tiny_target)
    model = AutoModelForCausalLM.from_pretrained(tiny_target)
    for identifier, (token_ids, loss_mask) in found.items():
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTIONS[int(identifier[1:])]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        alone = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
        )
        assert token_ids == alone[0].tolist()
        assert loss_mask == [0] * len(prompt) + [1] * (len(token_ids) - len(prompt))
    assert result["tokens"] == sum(len(ids) for ids, _ in found.values())
    assert result["responseTokens"] == sum(sum(mask) for _, mask in found.values())


def test_speculators_reads_rows_and_token_frequencies(run: Run, tmp_path: Path) -> None:
    import torch
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    ended = run()

    dataset = tmp_path / "dataset"
    frequencies = torch.load(dataset / "token_freq.pt", weights_only=True)
    assert frequencies == response_token_counts(samples(dataset).values())
    d2t, t2d = build_vocab_mappings_from_distribution(frequencies, 40, 640)
    inside = sum(count for token, count in frequencies.items() if t2d[token])
    assert int(t2d.sum()) == len(d2t) == 40
    share = inside / sum(frequencies.values())
    assert abs(float(ended.result["vocabularyCoverage"]) - share) < 1e-4


def test_the_template_is_recorded(run: Run, tiny_target: Path, tmp_path: Path) -> None:
    import hashlib

    run("--chat-template-arguments", '{"enable_thinking": false}')

    text = (tiny_target / "chat_template.jinja").read_text()
    found = record(tmp_path / "dataset")
    assert found["template_text"] == text
    assert found["template_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert found["template_arguments"] == {"enable_thinking": False}


def test_a_long_prompt_is_skipped_and_counted(run: Run, tmp_path: Path) -> None:
    ended = run(maximum_length=25, validation_share=0, draft_vocabulary_size=5)

    result = ended.result
    assert result["skipped"] > 0
    assert result["written"] + result["skipped"] + result["failed"] == result["input"] == 8
    assert all(len(ids) <= 25 for ids, _ in samples(tmp_path / "dataset").values())
    assert len(record(tmp_path / "dataset")["skipped"]) == result["skipped"]


def test_given_responses_are_kept(run: Run, tiny_target: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    rows = [
        {
            "id": "good",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello to you and the cat"},
            ],
        },
        {"id": "unanswered", "prompt": "Why?"},
    ]
    prompts = tmp_path / "answered.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    ended = run(
        "--no-regenerate-responses", prompts=prompts, validation_share=0, draft_vocabulary_size=2
    )

    assert ended.exit_code == 0
    assert (ended.result["written"], ended.result["failed"]) == (1, 1)
    token_ids, loss_mask = samples(tmp_path / "dataset")["good"]
    response = [t for t, m in zip(token_ids, loss_mask, strict=True) if m]
    tokenizer = AutoTokenizer.from_pretrained(tiny_target)
    assert tokenizer.decode(response) == "Hello to you and the cat<|im_end|>"
    assert "no response" in record(tmp_path / "dataset")["failed"]["unanswered"]


def test_a_corpus_too_small_for_the_vocabulary_is_refused_and_nothing_is_lost(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run(draft_vocabulary_size=600)

    assert (ended.exit_code, ended.reason) == (11, "VocabularyNotFilled")
    assert "draftVocabularySize asks for 600" in ended.message
    assert not (tmp_path / "dataset").exists()
    # The responses are kept: with the lower size that the message names, nothing is
    # generated anew.
    monkeypatch.setattr(prepare, "load_model", None)
    distinct = int(ended.message.split("at most ")[1])
    assert run(draft_vocabulary_size=distinct).exit_code == 0
    too_many = run(draft_vocabulary_size=distinct + 1)
    assert (too_many.exit_code, too_many.reason) == (11, "VocabularyNotFilled")


def test_a_finished_data_set_is_not_made_again(run: Run, tmp_path: Path) -> None:
    first = run()
    before = {f.name: f.stat().st_mtime_ns for f in (tmp_path / "dataset").iterdir()}
    assert run().result == first.result
    assert {f.name: f.stat().st_mtime_ns for f in (tmp_path / "dataset").iterdir()} == before
    other = run(maximum_new_tokens=25)
    assert (other.exit_code, other.reason) == (10, "DatasetInvalid")
    assert "maximum_new_tokens" in other.message


def test_a_directory_in_use_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/precious").write_text("mine")
    ended = run()
    assert (ended.exit_code, ended.reason) == (10, "DatasetInvalid")
    assert (tmp_path / "dataset/precious").read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "exit_code", "reason", "words"),
    [
        ({"prompts": "bad.jsonl"}, 11, "PromptsInvalid", "line 2: not JSON"),
        ({"prompts": "missing.jsonl"}, 11, "PromptsInvalid", "missing.jsonl is not a file"),
        ({"target": "empty"}, 11, "TargetInvalid", "is an empty directory"),
        ({"target": "nowhere/at/all"}, 11, "TargetInvalid", "neither a directory nor a model id"),
        ({"target": "bert"}, 11, "TargetInvalid", "BertForMaskedLM"),
        ({"target": "six-layers"}, 11, "TargetInvalid", "at least 7 layers"),
        ({"target": "no-tokenizer"}, 11, "TargetInvalid", "has no tokenizer"),
        ({"target": "no-template"}, 11, "TargetInvalid", "no chat template"),
        ({"draft_vocabulary_size": 641}, 10, "ConfigurationError", "vocabulary of 640"),
        ({"validation_share": "1.5"}, 10, "ConfigurationError", "--validation-share"),
        ({"maximum_length": "-3"}, 10, "ConfigurationError", "--maximum-length"),
        ({"chat_template_arguments": "[]"}, 10, "ConfigurationError", "not a JSON object"),
        ({"device": "cuda"}, 10, "ConfigurationError", "sees no GPU"),
    ],
)
def test_bad_input_is_named(
    run: Run,
    tiny_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    exit_code: int,
    reason: str,
    words: str,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n{"prompt": "b"}\n')
    (tmp_path / "empty").mkdir()
    config = json.loads((tiny_target / "config.json").read_bytes())
    for name, edit in {
        "bert": {"architectures": ["BertForMaskedLM"]},
        "six-layers": {"num_hidden_layers": 6},
        "no-tokenizer": {},
        "no-template": {},
    }.items():
        copy = tmp_path / name
        copy.mkdir()
        for file in tiny_target.iterdir():
            if name == "no-tokenizer" and file.name.startswith("tokenizer"):
                continue
            if name == "no-template" and file.name == "chat_template.jinja":
                continue
            (copy / file.name).symlink_to(file)
        (copy / "config.json").unlink()
        (copy / "config.json").write_text(json.dumps(config | edit))

    ended = run(**changes)

    assert (ended.exit_code, ended.reason) == (exit_code, reason), ended.message
    assert words in ended.message
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("kill", "exit_code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)]
)
def test_a_killed_job_keeps_its_responses(
    settings: dict[str, object], run: Run, tmp_path: Path, kill: signal.Signals, exit_code: int
) -> None:
    arguments = [
        part
        for pair in (settings | {"--batch-size": 1, "--maximum-new-tokens": 24}).items()
        for part in pair
    ]
    log = tmp_path / "killed"
    process = start("drafter_jobs.prepare", arguments, log)
    wait_for_event(process, "batch answered", 3)
    process.send_signal(kill)
    assert process.wait() == exit_code
    assert not (tmp_path / "dataset").exists()
    journal = tmp_path / "dataset.partial/responses.jsonl"
    kept = journal.read_bytes()
    assert kept.count(b"\n") >= 3

    ended = run()

    assert ended.exit_code == 0
    assert ended.result["written"] == 6
    finished = (tmp_path / "dataset/responses.jsonl").read_bytes()
    assert finished.startswith(kept[: kept.rindex(b"\n") + 1])
    assert finished.count(b"\n") == 6
    assert not journal.exists()


def test_the_journal_drops_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    with ResponseJournal(path) as journal:
        journal.add([("a", [1, 2]), ("b", [3])])
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with ResponseJournal(path) as journal:
        assert journal.responses == {"a": [1, 2]}
        journal.add([("b", [3])])
    assert path.read_bytes() == whole


def test_response_tokens_are_counted_under_the_mask_only() -> None:
    counts = response_token_counts([([1, 2, 3], [0, 1, 1]), ([3, 3, 4], [1, 1, 0])])
    assert counts == {2: 1, 3: 3}
    assert coverage(counts, 1) == "0.7500"
    assert coverage(counts, 0) == "1.0000"


def test_the_vocabulary_check_names_the_numbers() -> None:
    check_filled({1: 5, 2: 5}, 2)
    check_filled({}, 0)
    with pytest.raises(VocabularyNotFilledError, match=r"6054 distinct.*asks for 32000"):
        check_filled(dict.fromkeys(range(6054), 1), 32000)


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_batches_by_rows_are_even_and_hold_neighbours(rows: int) -> None:
    lengths = [5, 9, 1, 7, 7, 3, 2]
    batches = batches_by_rows(lengths, rows)
    assert sorted(i for batch in batches for i in batch) == list(range(7))
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    assert max(map(len, batches)) <= rows
    flat = [lengths[i] for batch in batches for i in batch]
    assert flat == sorted(lengths, reverse=True)


def test_batches_by_tokens_count_the_padding() -> None:
    lengths = [10, 3, 4, 30, 10]
    assert batches_by_tokens(lengths, 20) == [[3], [0, 4], [2, 1]]
    assert batches_by_tokens([], 20) == []
    assert batches_by_rows([], 3) == []
