"""What each process of a CPU server needs before it imports SGLang."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STAND_IN_PACKAGES = Path(__file__).resolve().parent / "stand_in_packages"

# SGLANG_USE_CPU_ENGINE selects SGLang's CPU paths. The operators are plain Python functions,
# which torch.compile would have to trace; nothing may be fetched from a hub while serving; the
# model package saves importing all of SGLang's models. A decoding step reads every weight once:
# with huge pages (glibc's malloc asks for them) that takes a sixth less time.
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "drafter_sglang_cpu.served_models",
}


def prepare() -> None:
    """Set the environment, put the stand-in packages on the path and register the hooks.

    Called again, it changes nothing. What the user has set in the environment is kept.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _put_stand_ins_on_the_path()
    _say_that_amx_tiles_are_supported()

    from drafter_sglang_cpu import packed_linear

    packed_linear.register_hooks()


def _put_stand_ins_on_the_path() -> None:
    directory = str(STAND_IN_PACKAGES)
    # A spawned process starts with its parent's path.
    sys.path = [entry for entry in sys.path if entry != directory]

    from transformers.utils import is_torchvision_available

    # Asked while the placeholder can't be found: transformers keeps the answer, and without
    # torchvision it does not offer the image processors that need the real one.
    is_torchvision_available()
    # Last: a real torchvision or sgl_kernel that is installed goes first.
    sys.path.append(directory)


def _say_that_amx_tiles_are_supported() -> None:
    """Make SGLang choose its ``intel_amx`` paths, the only CPU ones with an EAGLE draft backend.

    The operators behind those paths are the stand-in's, so that no AMX instruction is executed.
    """
    import torch

    torch.cpu._is_amx_tile_supported = lambda: True
