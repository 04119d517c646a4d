"""Turn prompts into the data set a drafter is trained on, answered by the target itself."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_jobs import arguments as argument_types
from drafter_jobs.atomic_files import synchronise, write_atomically, write_json
from drafter_jobs.chat_template import ChatTemplate, ChatTemplateError
from drafter_jobs.contract import metrics
from drafter_jobs.contract.config_fields import text_config
from drafter_jobs.contract.outcome import ExitCode, PrepareResult, Reason
from drafter_jobs.draft_vocabulary import (
    VocabularyNotFilledError,
    check_filled,
    coverage,
    response_token_counts,
)
from drafter_jobs.job import REGISTRY, JobError, Progress, job_parser, log, run_job
from drafter_jobs.length_batches import batches_by_rows
from drafter_jobs.prompts import (
    PromptRow,
    PromptsError,
    parse_prompts,
    rows_of_dataset,
    split_rows,
)
from drafter_jobs.response_journal import ResponseJournal
from drafter_jobs.target_model import (
    DEVICES,
    DTYPES,
    check_target,
    fingerprint,
    load_model,
    load_tokenizer,
    out_of_memory_is_an_outcome,
    resolve_auxiliary_layers,
)

RECORD = "prepare.json"
HELD_OUT = "held_out.jsonl"
JOURNAL = "responses.jsonl"
IDENTITY = "identity.json"
TOKEN_FREQUENCIES = "token_freq.pt"
REPORTED_SKIPS = 20

_SAMPLES = metrics.PREPARE_SAMPLES.counter(REGISTRY)
_TOKENS = metrics.PREPARE_TOKENS.counter(REGISTRY)


@dataclass(frozen=True)
class Sample:
    """A prompt, rendered; with its response once there is one."""

    id: str
    prompt: list[int]
    response: list[int] | None = None


@dataclass(frozen=True)
class Rendered:
    """Samples that can be trained on, and why the others can't, by id."""

    samples: list[Sample]
    skipped: dict[str, str]
    failed: dict[str, str]


def render(
    rows: Sequence[PromptRow],
    template: ChatTemplate,
    tokenizer: Any,
    *,
    regenerate: bool,
    maximum_length: int,
) -> Rendered:
    """Render prompts to token ids.

    Parameters
    ----------
    rows
        The prompts.
    template
        Chat template of the target.
    tokenizer
        Tokenizer of the target.
    regenerate
        Whether the target answers anew. A last answer in the row is dropped then, and needed
        otherwise.
    maximum_length
        Greatest length in tokens of prompt and response together. A prompt that leaves no
        room for a response is skipped; a given response is cut off.
    """
    samples: list[Sample] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for row in rows:
        answered = row.messages[-1]["role"] == "assistant"
        response: list[int] | None = None
        try:
            if regenerate:
                prompt = template.token_ids(tokenizer, row.messages[: -1 if answered else None])
            elif answered:
                prompt, response = template.answered_token_ids(tokenizer, row.messages)
            else:
                failed[row.id] = "has no response, and responses are not regenerated"
                continue
        except ChatTemplateError as error:
            failed[row.id] = str(error)
            continue
        room = maximum_length - len(prompt)
        if room < 1:
            skipped[row.id] = f"prompt of {len(prompt)} tokens, maximum length {maximum_length}"
        else:
            samples.append(Sample(row.id, prompt, response and response[:room]))
    return Rendered(samples, skipped, failed)


def answer(
    samples: Sequence[Sample],
    journal: ResponseJournal,
    model: Any,
    tokenizer: Any,
    *,
    batch_size: int,
    maximum_length: int,
    maximum_new_tokens: int,
    progress: Progress,
) -> None:
    """Let the target answer the samples the journal has no response for, greedily."""
    from drafter_jobs import greedy_decoding

    greedy_decoding.use_grouped_attention(model)
    end_ids = greedy_decoding.end_token_ids(model, tokenizer)
    open_samples = [sample for sample in samples if sample.id not in journal.responses]
    for batch in batches_by_rows([len(s.prompt) for s in open_samples], batch_size):
        prompts = [
            greedy_decoding.Prompt(
                row,
                open_samples[row].prompt,
                min(maximum_new_tokens, maximum_length - len(open_samples[row].prompt)),
            )
            for row in batch
        ]
        with out_of_memory_is_an_outcome("data.batchSize"):
            for row, response in greedy_decoding.decode_greedily(
                model, prompts, end_ids, progress.show_begun
            ):
                journal.add([(open_samples[row].id, response)])
                progress.advance()
                _count_written(response)
        log("batch answered", samples=len(batch), answered=len(journal.responses))


def write_dataset(samples: Sequence[Sample], directory: Path) -> Counter[int]:
    """Write the data set and the token frequencies in the form speculators 0.9 reads.

    Parameters
    ----------
    samples
        Samples with responses, in the order of the rows.
    directory
        Receives a data set of ``save_to_disk`` with the columns ``input_ids``, ``loss_mask``
        and ``seq_len``, and ``token_freq.pt``, a dict of occurrences by token id.

    Returns
    -------
    Counter
        Occurrences of the response tokens.
    """
    import datasets
    import torch

    columns: dict[str, list[Any]] = {"input_ids": [], "loss_mask": [], "seq_len": []}
    for sample in samples:
        response = sample.response or []
        columns["input_ids"].append([*sample.prompt, *response])
        columns["loss_mask"].append([0] * len(sample.prompt) + [1] * len(response))
        columns["seq_len"].append(len(sample.prompt) + len(response))
    numbers = datasets.Value("int64")
    features = {
        "input_ids": datasets.List(numbers),
        "loss_mask": datasets.List(numbers),
        "seq_len": numbers,
    }
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    datasets.disable_progress_bars()
    table.with_format("torch").save_to_disk(directory)
    counts = response_token_counts(zip(columns["input_ids"], columns["loss_mask"], strict=True))
    # Through memory, since torch hides the reason when the disk is full.
    frequencies = io.BytesIO()
    torch.save(dict(sorted(counts.items())), frequencies)
    write_atomically(directory / TOKEN_FREQUENCIES, frequencies.getvalue())
    return counts


def prepare(arguments: argparse.Namespace) -> PrepareResult:
    """Prepare a data set; the body of ``drafter-prepare``.

    Raises
    ------
    JobError
        If target, prompts or settings cannot be used, or the draft vocabulary is not filled.
    """
    output: Path = arguments.output
    config = check_target(arguments.target, arguments.target_revision)
    resolve_auxiliary_layers(config, arguments.auxiliary_layers)
    _check_vocabulary_size(arguments.draft_vocabulary_size, int(text_config(config)["vocab_size"]))
    rows, prompts_checksum = _read_rows(arguments)
    training, held_out = split_rows(rows, arguments.validation_share, arguments.seed)
    tokenizer = load_tokenizer(
        arguments.target, arguments.target_revision, arguments.trust_remote_code
    )
    try:
        template = ChatTemplate.of(tokenizer, arguments.chat_template_arguments)
    except ChatTemplateError as error:
        raise JobError(
            ExitCode.INVALID_INPUT,
            Reason.TARGET_INVALID,
            f"target {arguments.target}: {error}; use an instruction-tuned target",
        ) from None
    identity = {
        "target_fingerprint": fingerprint(arguments.target, arguments.target_revision, config),
        "prompts_sha256": prompts_checksum,
        "template_sha256": template.sha256,
        "template_arguments": dict(template.arguments),
        "regenerate_responses": arguments.regenerate_responses,
        "maximum_length": arguments.maximum_length,
        "maximum_new_tokens": arguments.maximum_new_tokens,
        "limit": arguments.limit,
        "validation_share": arguments.validation_share,
        "dtype": arguments.dtype,
        "seed": arguments.seed,
    }
    finished = _finished(output, identity, arguments.draft_vocabulary_size)
    if finished is not None:
        log("the data set is already there", output=str(output))
        return finished
    partial = output.with_name(f"{output.name}.partial")
    _begin(partial, identity)
    progress = Progress("samples")
    rendered = render(
        training,
        template,
        tokenizer,
        regenerate=arguments.regenerate_responses,
        maximum_length=arguments.maximum_length,
    )
    _report_left_out(rendered)
    progress.expect(len(rendered.samples))
    samples = _with_responses(arguments, rendered.samples, tokenizer, partial, progress)
    if not samples:
        raise JobError(
            ExitCode.INVALID_INPUT,
            Reason.PROMPTS_INVALID,
            f"none of the {len(training)} prompts can be used, for example:"
            f" {next(iter([*rendered.failed.values(), *rendered.skipped.values()]))}",
        )
    counts = write_dataset(samples, partial)
    result = _result(rendered, samples, counts, len(held_out), arguments.draft_vocabulary_size)
    write_atomically(
        partial / HELD_OUT,
        "".join(json.dumps(r.as_json(), ensure_ascii=False) + "\n" for r in held_out).encode(),
    )
    record = {
        "identity": identity,
        **template.record(),
        "target": arguments.target,
        "target_revision": arguments.target_revision,
        "result": result.model_dump(mode="json"),
        "distinct_response_tokens": len(counts),
        "samples": [sample.id for sample in samples],
        "skipped": rendered.skipped,
        "failed": rendered.failed,
    }
    _check_filled(counts, arguments.draft_vocabulary_size)
    write_json(partial / RECORD, record)
    for file in partial.iterdir():
        synchronise(file)
    with contextlib.suppress(FileNotFoundError):
        output.rmdir()
    partial.rename(output)
    synchronise(output.parent)
    return result


def _read_rows(arguments: argparse.Namespace) -> tuple[list[PromptRow], str]:
    """Read the prompts up to the limit, and a checksum of where they come from."""
    try:
        if arguments.prompts is not None:
            path: Path = arguments.prompts
            if not path.is_file():
                raise PromptsError(f"{path} is not a file")
            content = path.read_bytes()
            rows = parse_prompts(content, path.name)
            checksum = hashlib.sha256(content).hexdigest()
        else:
            rows = _rows_from_hub(
                arguments.prompts_dataset, arguments.prompts_split, arguments.prompts_field
            )
            text = json.dumps([row.as_json() for row in rows])
            checksum = hashlib.sha256(text.encode()).hexdigest()
    except PromptsError as error:
        raise JobError(ExitCode.INVALID_INPUT, Reason.PROMPTS_INVALID, str(error)) from None
    return rows[: arguments.limit or None], checksum


def _rows_from_hub(dataset: str, split: str, field: str) -> list[PromptRow]:
    import datasets

    try:
        table = datasets.load_dataset(dataset, split=split)
    except (OSError, ValueError) as error:
        raise PromptsError(f"data set {dataset} cannot be loaded: {error}") from None
    if field not in table.column_names:
        raise PromptsError(
            f"data set {dataset} has no field {field!r}; it has {', '.join(table.column_names)}"
        )
    return rows_of_dataset(table[field], field, split)


def _check_vocabulary_size(size: int, target_size: int) -> None:
    if size > target_size:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.CONFIGURATION_ERROR,
            f"training.draftVocabularySize {size} exceeds the target's vocabulary of {target_size}",
        )


def _check_filled(counts: Mapping[int, int], size: int) -> None:
    try:
        check_filled(counts, size)
    except VocabularyNotFilledError as error:
        raise JobError(ExitCode.INVALID_INPUT, Reason.VOCABULARY_NOT_FILLED, str(error)) from None


def _finished(
    output: Path, identity: Mapping[str, Any], draft_vocabulary_size: int
) -> PrepareResult | None:
    """Return the result of an earlier start that finished, if it had the same settings."""
    path = output / RECORD
    if not path.is_file():
        if output.is_dir() and any(output.iterdir()):
            raise JobError(
                ExitCode.CONFIGURATION_ERROR,
                Reason.DATASET_INVALID,
                f"{output} is in use by something else (there is no {RECORD} in it): give an"
                " empty or new directory",
            )
        return None
    record = json.loads(path.read_bytes())
    _refuse_other_identity(output, record["identity"], identity)
    result = PrepareResult.model_validate(record["result"])
    if record["distinct_response_tokens"] < draft_vocabulary_size:
        import torch

        _check_filled(
            torch.load(output / TOKEN_FREQUENCIES, weights_only=True), draft_vocabulary_size
        )
    return result.model_copy(update={"draft_vocabulary_size": draft_vocabulary_size})


def _begin(partial: Path, identity: Mapping[str, Any]) -> None:
    """Create the directory of unfinished work, or check that it is of the same settings."""
    path = partial / IDENTITY
    if path.is_file():
        _refuse_other_identity(partial, json.loads(path.read_bytes()), identity)
        return
    partial.mkdir(parents=True, exist_ok=True)
    write_json(path, identity)


def _refuse_other_identity(
    directory: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    if differing:
        raise JobError(
            ExitCode.CONFIGURATION_ERROR,
            Reason.DATASET_INVALID,
            f"{directory} was prepared with other settings ({', '.join(differing)}): remove it,"
            " or give another output",
        )


def _report_left_out(rendered: Rendered) -> None:
    for result, left_out in (("skipped", rendered.skipped), ("failed", rendered.failed)):
        _SAMPLES.labels(result).inc(len(left_out))
        for identifier, why in list(left_out.items())[:REPORTED_SKIPS]:
            log(f"prompt {result}", id=identifier, why=why)


def _with_responses(
    arguments: argparse.Namespace,
    samples: Sequence[Sample],
    tokenizer: Any,
    partial: Path,
    progress: Progress,
) -> list[Sample]:
    if not arguments.regenerate_responses:
        for sample in samples:
            _count_written(sample.response or [])
        progress.reach(len(samples))
        return list(samples)
    with ResponseJournal(partial / JOURNAL) as journal:
        kept = [s for s in samples if s.id in journal.responses]
        for sample in kept:
            _count_written(journal.responses[sample.id])
        progress.reach(len(kept))
        if kept:
            log("resuming", kept=len(kept), of=len(samples))
        if len(kept) < len(samples):
            model = load_model(
                arguments.target,
                arguments.target_revision,
                arguments.trust_remote_code,
                arguments.dtype,
                arguments.device,
            )
            answer(
                samples,
                journal,
                model,
                tokenizer,
                batch_size=arguments.batch_size,
                maximum_length=arguments.maximum_length,
                maximum_new_tokens=arguments.maximum_new_tokens,
                progress=progress,
            )
        return [Sample(s.id, s.prompt, journal.responses[s.id]) for s in samples]


def _count_written(response: Sequence[int]) -> None:
    _SAMPLES.labels("written").inc()
    _TOKENS.inc(len(response))


def _result(
    rendered: Rendered,
    samples: Sequence[Sample],
    counts: Counter[int],
    held_out: int,
    draft_vocabulary_size: int,
) -> PrepareResult:
    responses = sum(len(sample.response or []) for sample in samples)
    return PrepareResult(
        input=len(samples) + len(rendered.skipped) + len(rendered.failed),
        written=len(samples),
        skipped=len(rendered.skipped),
        failed=len(rendered.failed),
        tokens=responses + sum(len(sample.prompt) for sample in samples),
        response_tokens=responses,
        held_out=held_out,
        draft_vocabulary_size=draft_vocabulary_size,
        vocabulary_coverage=coverage(counts, draft_vocabulary_size),
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = job_parser("drafter-prepare", __doc__ or "")
    flag = parser.add_argument
    flag("--target", required=True, help="directory or Hub id of the target")
    flag("--target-revision", help="branch, tag or commit on the Hub")
    flag("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", type=Path, help="JSON Lines file")
    source.add_argument("--prompts-dataset", help="Hub id of a data set")
    flag("--prompts-split", default="train")
    flag("--prompts-field", default="prompt", help="column of text, or of messages")
    flag("--output", type=Path, required=True, help="directory of the data set")
    flag(
        "--limit",
        type=argument_types.not_negative,
        default=0,
        help="use the first prompts only; 0 for all",
    )
    flag("--regenerate-responses", action=argparse.BooleanOptionalAction, default=True)
    flag(
        "--maximum-length",
        type=argument_types.positive,
        default=512,
        help="tokens of prompt and response",
    )
    flag(
        "--maximum-new-tokens",
        type=argument_types.positive,
        default=96,
        help="tokens of a response",
    )
    flag(
        "--validation-share",
        type=argument_types.share,
        default=0.1,
        help="share of prompts held out",
    )
    flag(
        "--draft-vocabulary-size",
        type=argument_types.not_negative,
        default=3072,
        help="entries the responses must fill; 0 for the target's whole vocabulary",
    )
    flag(
        "--auxiliary-layers",
        type=argument_types.layer_ids,
        default=[],
        help="layers Extract will take, to refuse early what it would refuse",
    )
    flag(
        "--chat-template-arguments", type=argument_types.json_object, default={}, help="JSON object"
    )
    flag("--device", choices=DEVICES, default="cpu")
    flag("--dtype", choices=DTYPES, default="bfloat16")
    flag("--batch-size", type=argument_types.positive, default=64, help="prompts answered at once")
    flag("--seed", type=int, default=0, help="of the split and the order; responses are greedy")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of :func:`prepare`."""
    sys.exit(run_job(build_parser(), prepare, arguments))


if __name__ == "__main__":
    main()
