"""The report an export leaves beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

REPORT_FILE = "export-report.json"
FORMAT = "drafters.dev/export-report/v1"


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class SourceReport(_Part):
    """What was read."""

    path: str
    files: list[str]
    sha256: str = Field(description="Of names and contents of the files, config.json included.")


class TargetReport(_Part):
    """The target the drafter was checked against."""

    name: str
    architecture: str
    layers: int
    hidden_size: int
    vocabulary_size: int
    context_length: int


class LayersReport(_Part):
    """Auxiliary layers."""

    trained: list[int] = Field(description="The drafter reads the input of these layers.")
    written: list[int] = Field(description="The same in the engine's convention.")
    convention: str


class TensorReport(_Part):
    """One tensor of the output."""

    name: str
    dtype: str
    shape: list[int]


class ExportReport(_Part):
    """Everything an export did."""

    format: str = FORMAT
    source: SourceReport
    target: TargetReport
    auxiliary_layers: LayersReport
    renamed: dict[str, str] = Field(description="New tensor name by old.")
    dropped: dict[str, str] = Field(description="Reason by tensor name.")
    added: list[str] = Field(description="Config fields the checkpoint's config did not have.")
    tensors: list[TensorReport]
    parameters: int = Field(description="Elements of all floating-point tensors.")
    notes: list[str]
    sha256: dict[str, str] = Field(description="Checksum by file of the output.")

    def same_work(self, other: ExportReport) -> bool:
        """Whether both reports describe the same input and target, wherever these lie."""
        varying: dict[str, Any] = {"source": {"path"}, "target": {"name"}, "sha256": True}
        return self.model_dump(exclude=varying) == other.model_dump(exclude=varying)


def read_report(directory: Path) -> ExportReport | None:
    """Read the report of a directory.

    Returns
    -------
    ExportReport or None
        ``None`` if there is no report of this format.
    """
    try:
        report = ExportReport.model_validate_json((directory / REPORT_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return report if report.format == FORMAT else None
