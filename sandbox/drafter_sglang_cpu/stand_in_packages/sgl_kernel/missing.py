"""Operators SGLang names but this module does not have: an error that says which one."""

from __future__ import annotations

from typing import Any, NoReturn


class MissingOperatorError(NotImplementedError):
    """An operator was called that the plain-torch ``sgl_kernel`` does not have."""


class MissingOperator:
    """Stands where SGLang binds an operator while importing; raises when called.

    Parameters
    ----------
    name : str
        The operator's name, as SGLang spells it.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Raise `MissingOperatorError`, naming the operator."""
        raise missing(self.__name__)


def missing(name: str) -> MissingOperatorError:
    """Return the error for the operator ``name``."""
    return MissingOperatorError(
        f"sgl_kernel operator {name!r} is not among the plain-torch CPU operators: they cover "
        "dense Llama-like models with EAGLE-3. Serve this model on a GPU, or add the operator."
    )


def unsupported(operator: str, argument: str, value: object) -> NotImplementedError:
    """Return the error for a value of an argument that ``operator`` does not handle."""
    return NotImplementedError(
        f"sgl_kernel operator {operator!r} on the CPU does not support {argument}={value!r}"
    )
