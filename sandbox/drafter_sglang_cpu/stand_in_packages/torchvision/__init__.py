"""Placeholder: SGLang imports torchvision for image models, which the CPU server has none of."""

__version__ = "0.0.0"
