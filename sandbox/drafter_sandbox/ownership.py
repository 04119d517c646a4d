"""Which objects own which, by uid."""

from __future__ import annotations

from typing import Any

from drafter_sandbox.persistence import Entry

Body = dict[str, Any]


def owners(body: Body) -> list[Body]:
    """Return an object's owner references."""
    return body["metadata"].get("ownerReferences") or []


def without_owner(body: Body, uid: str) -> Body:
    """Return an object's metadata changed, in place, to name an owner no more."""
    rest = [owner for owner in owners(body) if owner["uid"] != uid]
    if rest:
        body["metadata"]["ownerReferences"] = rest
    else:
        body["metadata"].pop("ownerReferences", None)
    return body


class Ownership:
    """Where each uid is, and who names it as an owner."""

    def __init__(self) -> None:
        self._places: dict[str, Entry] = {}
        self._dependents: dict[str, set[Entry]] = {}

    def add(self, entry: Entry, body: Body) -> None:
        """Take up an object."""
        self._places[body["metadata"]["uid"]] = entry
        for owner in owners(body):
            self._dependents.setdefault(owner["uid"], set()).add(entry)

    def drop(self, entry: Entry, body: Body) -> None:
        """Forget an object."""
        self._places.pop(body["metadata"]["uid"], None)
        for owner in owners(body):
            entries = self._dependents.get(owner["uid"])
            if entries:
                entries.discard(entry)
                if not entries:
                    del self._dependents[owner["uid"]]

    def exists(self, uid: str) -> bool:
        """Whether an object with this uid exists."""
        return uid in self._places

    def place(self, uid: str) -> Entry | None:
        """Return where the object with this uid is."""
        return self._places.get(uid)

    def dependents(self, uid: str) -> list[Entry]:
        """Return the objects that name this uid as an owner, in order."""
        return sorted(self._dependents.get(uid, ()))

    def all_dependents(self) -> set[Entry]:
        """Return all objects that name an owner."""
        return {entry for entries in self._dependents.values() for entry in entries}
