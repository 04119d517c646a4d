"""Render the benchmark's prompts with the template the drafter was trained with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafter_jobs.load_generator import TokenizedPrompt
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
        JSON Lines with ``prompt`` or ``messages``, and ``id``.
    dataset
        Directory of the dataset, with its record.
    target
        Directory or Hub id of the target, for its tokenizer.
    revision
        On the Hub.
    trust_remote_code
        Whether a tokenizer may run code of its own.
    limit
        Number of prompts taken.

    Raises
    ------
    PromptsUnusableError
        If the file or the record cannot be used.
    TemplateMismatchError
        If the target's template has changed since the dataset was prepared.
    """
    record = read_template_record(dataset)
    conversations = read_conversations(prompts, limit)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            target, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        summary = str(error).strip().splitlines()[0]
        raise PromptsUnusableError(f"the tokenizer of {target} cannot be read: {summary}") from None
    check_template(tokenizer.chat_template, record, target)
    tokenized = [
        TokenizedPrompt(
            identity,
            tokenizer.apply_chat_template(
                messages,
                tokenize=True,
                add_generation_prompt=True,
                return_dict=False,
                **record.arguments,
            ),
        )
        for identity, messages in conversations
    ]
    return LoadedPrompts(tokenized, record.sha256)


def check_template(template: str | None, record: TemplateRecord, target: str) -> None:
    """Compare a target's template with the recorded one.

    Raises
    ------
    TemplateMismatchError
        If they differ.
    """
    if not template:
        raise TemplateMismatchError(
            f"{target} has no chat template, the drafter was trained with one; give the target "
            "the tokenizer it was trained for"
        )
    present = hashlib.sha256(template.encode()).hexdigest()
    if present != record.sha256:
        raise TemplateMismatchError(
            f"the chat template of {target} has the checksum {present[:12]}, the drafter was "
            f"trained with {record.sha256[:12]}: another template changes the prompts and lowers "
            "acceptance; restore the template, or train again"
        )


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


def read_conversations(path: Path, limit: int) -> list[tuple[str, list[dict[str, str]]]]:
    """Read id and messages of the first prompts of a file.

    Returns
    -------
    list of tuple
        Id and messages, each with ``role`` and ``content``, without a trailing answer.

    Raises
    ------
    PromptsUnusableError
        If a line is not a prompt, an id repeats, or there is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PromptsUnusableError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PromptsUnusableError(f"{path} is not UTF-8: {error.reason}") from None
    found: dict[str, list[dict[str, str]]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(found) == limit:
            break
        identity, messages = _conversation(path, number, line)
        if identity in found:
            raise PromptsUnusableError(f"{path}, line {number}: the id {identity!r} repeats")
        found[identity] = messages
    if not found:
        raise PromptsUnusableError(f"{path} holds no prompt")
    return list(found.items())


def _conversation(path: Path, number: int, line: str) -> tuple[str, list[dict[str, str]]]:
    try:
        row = json.loads(line)
        identity = str(row.get("id", number))
        messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        checked = [_message(message) for message in messages]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PromptsUnusableError(
            f'{path}, line {number}: not a row like {{"id": "1", "prompt": "…"}} or '
            '{"id": "1", "messages": [{"role": "user", "content": "…"}]}'
        ) from None
    if checked[-1]["role"] == "assistant":
        checked.pop()
    if not checked:
        raise PromptsUnusableError(f"{path}, line {number}: only an answer, no question")
    return identity, checked


def _message(message: Any) -> dict[str, str]:
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or not isinstance(content, str) or not content.strip():
        raise ValueError
    return {"role": role, "content": content}
