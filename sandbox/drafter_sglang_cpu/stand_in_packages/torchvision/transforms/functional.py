"""Placeholder for the names SGLang imports; see the package."""

from enum import Enum


class InterpolationMode(Enum):
    """Ways to resize an image, under torchvision's names."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
