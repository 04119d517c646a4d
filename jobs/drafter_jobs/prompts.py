"""Prompts as users give them: JSON Lines, checked as a whole before any work begins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

REPORTED_PROBLEMS = 10
ROLES = ("system", "user", "assistant", "tool")

Message = Mapping[str, str]


class PromptsError(ValueError):
    """The prompts cannot be used; the message names the lines."""


@dataclass(frozen=True)
class PromptRow:
    """A conversation that a response is wanted for, or that ends with one."""

    id: str
    messages: tuple[Message, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the row in the form :func:`parse_prompts` reads."""
        if len(self.messages) == 1 and self.messages[0]["role"] == "user":
            return {"id": self.id, "prompt": self.messages[0]["content"]}
        return {"id": self.id, "messages": [dict(message) for message in self.messages]}


def parse_prompts(content: bytes, source: str) -> list[PromptRow]:
    """Read JSON Lines of ``{"id", "prompt"}`` or ``{"id", "messages"}``.

    Parameters
    ----------
    content
        The file's bytes. Empty lines are passed over.
    source
        The file's name, for the error.

    Raises
    ------
    PromptsError
        If a line cannot be used, an id occurs twice, or there is no prompt at all. Names the
        first lines that are wrong, and why.
    """
    rows: list[PromptRow] = []
    problems: list[str] = []
    lines_by_id: dict[str, int] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _parse_line(line, number)
        except PromptsError as error:
            problems.append(f"line {number}: {error}")
            continue
        if row.id in lines_by_id:
            problems.append(f"line {number}: id {row.id!r} is also on line {lines_by_id[row.id]}")
            continue
        lines_by_id[row.id] = number
        rows.append(row)
    if problems:
        raise PromptsError(
            f"{source}: {len(problems)} of {len(rows) + len(problems)} lines cannot be used: "
            + "; ".join(problems[:REPORTED_PROBLEMS])
            + ("; …" if len(problems) > REPORTED_PROBLEMS else "")
            + '. Each line must be a JSON object with "prompt" or "messages"'
        )
    if not rows:
        raise PromptsError(
            f"{source} holds no prompt; give one JSON object a line, such as"
            ' {"id": "1", "prompt": "Why is the sky blue?"}'
        )
    return rows


def rows_of_dataset(values: Iterable[Any], field: str, source: str) -> list[PromptRow]:
    """Turn one column of a data set into prompts.

    Parameters
    ----------
    values
        Strings, or lists of messages with ``role`` and ``content``.
    field
        The column's name, for the error.
    source
        The data set's name, used in ids.

    Raises
    ------
    PromptsError
        If a value has another form.
    """
    rows = []
    for index, value in enumerate(values):
        form = {"prompt": value} if isinstance(value, str) else {"messages": value}
        try:
            rows.append(PromptRow(f"{source}-{index}", _messages(form)))
        except PromptsError as error:
            raise PromptsError(f"{source}, row {index}, field {field!r}: {error}") from None
    if not rows:
        raise PromptsError(f"{source} holds no prompt")
    return rows


def split_rows(
    rows: list[PromptRow], held_out_share: float, seed: int
) -> tuple[list[PromptRow], list[PromptRow]]:
    """Keep a share of the prompts back, and shuffle the rest.

    The order depends on ids and seed only, so that a resumed job sees the same one. It is
    shuffled because the trainer takes the last rows as its validation split.

    Returns
    -------
    tuple
        Rows for training and rows held out; at least one row is for training.
    """
    ordered = sorted(rows, key=lambda row: _rank(row.id, seed))
    count = min(round(len(ordered) * held_out_share), len(ordered) - 1)
    return ordered[count:], ordered[:count]


def _rank(identifier: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{identifier}".encode()).digest()


def _parse_line(line: bytes, number: int) -> PromptRow:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PromptsError(f"not UTF-8 (byte {error.start + 1})") from None
    except ValueError as error:
        raise PromptsError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise PromptsError(f"a JSON {type(value).__name__}, not an object")
    identifier = value.get("id", f"line-{number}")
    if not isinstance(identifier, (str, int)) or not str(identifier).strip():
        raise PromptsError(f'"id" is {identifier!r}, not a word or number')
    return PromptRow(str(identifier), _messages(value))


def _messages(value: Mapping[str, Any]) -> tuple[Message, ...]:
    prompt, messages = value.get("prompt"), value.get("messages")
    if (prompt is None) == (messages is None):
        raise PromptsError('exactly one of "prompt" and "messages" is needed')
    if messages is None:
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages:
        raise PromptsError('"messages" is not a list of messages')
    checked = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ROLES:
            raise PromptsError(f"role {role!r} is none of {', '.join(ROLES)}")
        if not isinstance(content, str) or not content.strip():
            what = "prompt" if prompt is not None else f"the content of role {role!r}"
            raise PromptsError(f"{what} is empty or not text")
        try:
            content.encode()
        except UnicodeEncodeError:
            raise PromptsError("the text holds half of a surrogate pair") from None
        checked.append({"role": role, "content": content})
    return tuple(checked)
