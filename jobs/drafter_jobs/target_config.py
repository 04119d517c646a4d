"""Read a target's ``config.json`` from a directory or the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drafter_jobs.speculators_checkpoint import CheckpointUnreadableError, read_json_object


class TargetUnreadableError(ValueError):
    """The target's config cannot be had; the message says why."""


def read_target_config(target: str, revision: str | None = None) -> dict[str, Any]:
    """Read the config of a target model.

    Parameters
    ----------
    target
        A directory, or a model id of the Hub.
    revision
        Branch, tag or commit of the Hub's repository.

    Raises
    ------
    TargetUnreadableError
        If there is no readable ``config.json``.
    """
    directory = Path(target)
    if directory.is_dir():
        path = directory / "config.json"
    elif target.startswith(("/", ".")) or target.count("/") != 1:
        raise TargetUnreadableError(f"target {target} is neither a directory nor a model id")
    else:
        path = _download_config(target, revision)
    try:
        return read_json_object(path)
    except CheckpointUnreadableError as error:
        raise TargetUnreadableError(f"target {target} cannot be used: {error}") from None


def _download_config(target: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(target, "config.json", revision=revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        summary = str(error).strip().splitlines()[0]
        raise TargetUnreadableError(
            f"config.json of {target} cannot be fetched from the Hub: {summary}"
        ) from None
