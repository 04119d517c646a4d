"""Placeholder for the names SGLang imports; see the package."""

from . import functional
from .functional import InterpolationMode

__all__ = ["InterpolationMode", "functional"]
