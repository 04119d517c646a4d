"""The chat template and its arguments: what Prepare records and Benchmark must match."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class ChatTemplateError(ValueError):
    """The template cannot render a conversation, or is not as recorded."""


@dataclass(frozen=True)
class ChatTemplate:
    """A tokenizer's chat template with the arguments given to it.

    ``arguments`` are extra variables of the template, such as ``enable_thinking``.
    """

    text: str
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, tokenizer: Any, arguments: Mapping[str, Any]) -> ChatTemplate:
        """Take the template of a tokenizer of transformers.

        Raises
        ------
        ChatTemplateError
            If the tokenizer has none.
        """
        text = tokenizer.chat_template
        if isinstance(text, dict):
            text = text.get("default")
        if not text:
            raise ChatTemplateError("the target's tokenizer has no chat template")
        return cls(text, dict(arguments))

    @property
    def sha256(self) -> str:
        """Checksum of the template's text in UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """Return the fields that Prepare records."""
        return {
            "template_text": self.text,
            "template_sha256": self.sha256,
            "template_arguments": dict(self.arguments),
        }

    def token_ids(self, tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the assistant begins to answer.

        Raises
        ------
        ChatTemplateError
            If the template refuses the conversation.
        """
        return _tokenize(tokenizer, self._render(tokenizer, messages, True))

    def answered_token_ids(
        self, tokenizer: Any, messages: Sequence[Mapping[str, str]]
    ) -> tuple[list[int], list[int]]:
        """Token ids of a conversation that ends with an answer: prompt, and answer.

        Raises
        ------
        ChatTemplateError
            If the prompt is not a prefix of the whole (some templates rewrite history).
        """
        prompt = self._render(tokenizer, messages[:-1], True)
        whole = self._render(tokenizer, messages, False)
        if not whole.startswith(prompt):
            raise ChatTemplateError(
                "the rendered prompt is not the beginning of the rendered conversation"
            )
        answer = _tokenize(tokenizer, whole[len(prompt) :])
        end = tokenizer.eos_token_id
        if end in answer:
            # What the template writes after the end token, the model never does.
            answer = answer[: len(answer) - answer[::-1].index(end)]
        return _tokenize(tokenizer, prompt), answer

    def _render(self, tokenizer: Any, messages: Sequence[Mapping[str, str]], generate: bool) -> str:
        from jinja2 import TemplateError

        try:
            rendered: str = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=generate,
                **self.arguments,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ChatTemplateError(f"the chat template refuses it: {error}") from None
        return rendered


def _tokenize(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
