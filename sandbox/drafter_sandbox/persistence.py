"""The sqlite file that carries the objects over a restart."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Body = dict[str, Any]
# Group, plural, namespace and name.
Entry = tuple[str, str, str, str]


class Database:
    """Objects in a file, written one by one."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        # The file must survive the end of the process, not of the machine.
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS objects (grp TEXT, plural TEXT, namespace TEXT, name TEXT,"
            " body TEXT NOT NULL, PRIMARY KEY (grp, plural, namespace, name)) WITHOUT ROWID"
        )
        self._connection.execute("CREATE TABLE IF NOT EXISTS counter (version INTEGER NOT NULL)")
        if self._connection.execute("SELECT version FROM counter").fetchone() is None:
            self._connection.execute("INSERT INTO counter VALUES (1)")

    @property
    def version(self) -> int:
        """Number of the last change that was written."""
        return int(self._connection.execute("SELECT version FROM counter").fetchone()[0])

    def load(self) -> Iterator[tuple[Entry, Body]]:
        """Yield all objects."""
        rows = self._connection.execute("SELECT grp, plural, namespace, name, body FROM objects")
        for group, plural, namespace, name, text in rows.fetchall():
            yield (group, plural, namespace, name), json.loads(text)

    def save(self, entry: Entry, body: Body | None, version: int) -> None:
        """Write an object, or remove it when it is None, and the number of the change."""
        self._connection.execute("BEGIN")
        if body is None:
            self._connection.execute(
                "DELETE FROM objects WHERE grp=? AND plural=? AND namespace=? AND name=?", entry
            )
        else:
            text = json.dumps(body, separators=(",", ":"))
            self._connection.execute(
                "INSERT OR REPLACE INTO objects VALUES (?,?,?,?,?)", (*entry, text)
            )
        self._connection.execute("UPDATE counter SET version=?", (version,))
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
