"""Render the benchmark's prompts with the template the drafter was trained with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_jobs.chat_template import ChatTemplate, ChatTemplateError
from drafter_jobs.load_generator import TokenizedPrompt
from drafter_jobs.prompts import PromptRow, PromptsError, parse_prompts
from drafter_jobs.speculators_checkpoint import CheckpointUnreadableError, read_json_object

RECORD_FILE = "prepare.json"


class PromptsUnusableError(ValueError):
    """The prompts or the dataset's record cannot be used; the message names file and line."""


class TemplateMismatchError(ValueError):
    """The target's chat template is not the one the drafter was trained with."""


@dataclass(frozen=True)
class TemplateRecord:
    """Chat template of a dataset.

    Attributes
    ----------
    sha256
        Of the template's text in UTF-8.
    arguments
        What else was passed to it, such as ``enable_thinking``.
    """

    sha256: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class LoadedPrompts:
    """Prompts ready to be sent."""

    prompts: list[TokenizedPrompt]
    template_sha256: str


def load_prompts(
    prompts: Path,
    dataset: Path,
    target: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    limit: int,
) -> LoadedPrompts:
    """Read, render and tokenise the first prompts of a file.

    Parameters
    ----------
    prompts
        JSON Lines, as Prepare reads them; the answer of a row that ends with one is left out.
    dataset
        Directory of the dataset, with its record.
    target
        Directory or Hub id of the target, for its tokenizer.
    revision
        On the Hub.
    trust_remote_code
        Whether a tokenizer may run code of its own.
    limit
        Number of prompts taken, at most.

    Raises
    ------
    PromptsUnusableError
        If the file or the record cannot be used.
    TemplateMismatchError
        If the target's template has changed since the dataset was prepared.
    """
    record = read_template_record(dataset)
    rows = _read_rows(prompts)[:limit]
    tokenizer = _load_tokenizer(target, revision, trust_remote_code)
    template = matching_template(tokenizer, record, target)
    try:
        tokenized = [
            TokenizedPrompt(row.id, template.token_ids(tokenizer, _question(row))) for row in rows
        ]
    except ChatTemplateError as error:
        raise PromptsUnusableError(f"{prompts}: {error}") from None
    return LoadedPrompts(tokenized, record.sha256)


def matching_template(tokenizer: Any, record: TemplateRecord, target: str) -> ChatTemplate:
    """Return a tokenizer's template if it is the recorded one.

    Parameters
    ----------
    tokenizer
        Of the target.
    record
        Of the dataset.
    target
        The target's name, for the error.

    Raises
    ------
    TemplateMismatchError
        If the template is another one, or there is none.
    """
    try:
        template = ChatTemplate.of(tokenizer, record.arguments)
    except ChatTemplateError as error:
        raise TemplateMismatchError(
            f"{target}: {error}, the drafter was trained with one; give the target the tokenizer "
            "it was trained for"
        ) from None
    if template.sha256 != record.sha256:
        raise TemplateMismatchError(
            f"the chat template of {target} has the checksum {template.sha256[:12]}, the drafter "
            f"was trained with {record.sha256[:12]}: another template changes the prompts and "
            "lowers acceptance; restore the template, or train again"
        )
    return template


def read_template_record(dataset: Path) -> TemplateRecord:
    """Read which template a dataset was prepared with.

    Raises
    ------
    PromptsUnusableError
        If the dataset has no readable record.
    """
    path = dataset / RECORD_FILE
    try:
        record = read_json_object(path)
        return TemplateRecord(
            sha256=str(record["template_sha256"]),
            arguments=dict(record["template_arguments"]),
        )
    except CheckpointUnreadableError as error:
        raise PromptsUnusableError(f"--dataset: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise PromptsUnusableError(f"--dataset: {path} records no chat template") from None


def _read_rows(path: Path) -> list[PromptRow]:
    try:
        return parse_prompts(path.read_bytes(), str(path))
    except OSError as error:
        raise PromptsUnusableError(f"cannot read {path}: {error.strerror}") from None
    except PromptsError as error:
        raise PromptsUnusableError(str(error)) from None


def _question(row: PromptRow) -> list[dict[str, str]]:
    messages = [dict(message) for message in row.messages]
    if messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise ChatTemplateError(f"the prompt {row.id!r} is an answer without a question")
    return messages


def _load_tokenizer(target: str, revision: str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            target, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        summary = str(error).strip().splitlines()[0]
        raise PromptsUnusableError(f"the tokenizer of {target} cannot be read: {summary}") from None
