"""Log lines: words on a terminal, JSON elsewhere, with the run they speak of."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_FIELDS = ("namespace", "run", "step")


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {field: getattr(record, field) for field in _FIELDS if hasattr(record, field)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """For people: time, level, run, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as words."""
        where = "/".join(
            str(getattr(record, field)) for field in ("namespace", "run") if hasattr(record, field)
        )
        stamp = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        text = f"{stamp} {record.levelname.lower():7} {where:24} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up_logs(form: str, level: str) -> None:
    """Send all logs to standard error.

    Parameters
    ----------
    form
        ``json``, ``text``, or ``auto`` for text on a terminal.
    level
        Name of the lowest level shown.
    """
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
