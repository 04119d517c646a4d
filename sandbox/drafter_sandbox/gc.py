"""What goes, or stays, with an object that is deleted.

Dependents follow their owner (see the three propagation policies of
Kubernetes); the contents of a namespace and the objects of a CRD go before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drafter_sandbox.errors import ApiError
from drafter_sandbox.ownership import owners, without_owner
from drafter_sandbox.persistence import Entry
from drafter_sandbox.resources import CRD_GROUP, CRD_PLURAL, ResourceType
from drafter_sandbox.trees import copy_tree

if TYPE_CHECKING:
    from drafter_sandbox.store import Store

Body = dict[str, Any]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class Collector:
    """Carries out the consequences of deletions in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._suspects: set[Entry] = set()

    # Dependents

    def orphan_dependents(self, uid: str) -> None:
        """Make the dependents of an owner independent of it."""
        for entry in self._store.ownership.dependents(uid):
            found = self._store.at(entry)
            if found:
                resource, body = found
                self._store.replace(resource, body, without_owner(copy_tree(body), uid))

    def delete_dependents(self, uid: str) -> None:
        """Delete the dependents of an owner that waits for them."""
        for entry in self._store.ownership.dependents(uid):
            found = self._store.at(entry)
            if found and not found[1]["metadata"].get("deletionTimestamp"):
                meta = found[1]["metadata"]
                self._store.delete(
                    entry[1], meta.get("namespace"), meta["name"], entry[0], "Foreground"
                )

    def finish_owner(self, uid: str) -> None:
        """Let an owner go that waits for its dependents, once none blocks it."""
        entry = self._store.ownership.place(uid)
        found = self._store.at(entry) if entry else None
        if found is None or FOREGROUND not in (found[1]["metadata"].get("finalizers") or []):
            return
        for dependent in self._store.ownership.dependents(uid):
            other = self._store.at(dependent)
            if other and any(
                owner["uid"] == uid and owner.get("blockOwnerDeletion")
                for owner in owners(other[1])
            ):
                return
        self.drop_finalizer(*found, FOREGROUND)

    def drop_finalizer(self, resource: ResourceType, body: Body, finalizer: str) -> None:
        """Remove a finalizer from an object if it still exists."""
        entry = self._store.ownership.place(body["metadata"]["uid"])
        found = self._store.at(entry) if entry else None
        if found is None:
            return
        new = copy_tree(found[1])
        rest = [name for name in new["metadata"].get("finalizers") or [] if name != finalizer]
        new["metadata"]["finalizers"] = rest
        if not rest:
            del new["metadata"]["finalizers"]
        self._store.replace(resource, found[1], new)

    def _release(self, entry: Entry, gone: str) -> None:
        """Delete a dependent whose owner is gone, unless another owner remains."""
        found = self._store.at(entry)
        if found is None:
            return
        resource, body = found
        meta = body["metadata"]
        if any(o["uid"] != gone and self._store.ownership.exists(o["uid"]) for o in owners(body)):
            self._store.replace(resource, body, without_owner(copy_tree(body), gone))
        elif not meta.get("deletionTimestamp"):
            self._store.delete(resource.plural, meta.get("namespace"), meta["name"], resource.group)

    def removed(self, resource: ResourceType, body: Body) -> None:
        """Let go what depended on an object, or waited for it, that is gone now."""
        uid = body["metadata"]["uid"]
        for entry in self._store.ownership.dependents(uid):
            self._release(entry, uid)
        for owner in owners(body):
            self.finish_owner(owner["uid"])
        self._finish_container(resource, body)

    def resume(self) -> None:
        """Carry on with the deletions that the last end of the process interrupted."""
        for entry in self._store.entries():
            found = self._store.at(entry)
            if found is None or not found[1]["metadata"].get("deletionTimestamp"):
                continue
            resource, body = found
            meta = body["metadata"]
            finalizers = meta.get("finalizers") or []
            if ORPHAN in finalizers:
                self.orphan_dependents(meta["uid"])
                self.drop_finalizer(resource, body, ORPHAN)
            if FOREGROUND in finalizers:
                self.delete_dependents(meta["uid"])
                self.finish_owner(meta["uid"])
            self.delete_contents(resource, body)
            self._finish(entry)

    # Owners that do not exist

    def suspect(self, *entries: Entry) -> None:
        """Have objects with owners checked soon: without any existing one they are deleted."""
        self._suspects.update(entries)
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(self.collect)

    def collect(self) -> None:
        """Delete the suspected objects none of whose owners exist."""
        suspects, self._suspects = self._suspects, set()
        for entry in sorted(suspects):
            found = self._store.at(entry)
            if found is None:
                continue
            named = owners(found[1])
            if named and not any(self._store.ownership.exists(owner["uid"]) for owner in named):
                self._release(entry, named[0]["uid"])

    # Namespaces and CRDs hold contents that go before them

    def contents(self, resource: ResourceType, body: Body) -> Sequence[Entry]:
        """Return what is in a namespace or of a CRD; other objects have no contents."""
        if (resource.group, resource.plural) == ("", "namespaces"):
            return self._store.entries(namespace=body["metadata"]["name"])
        if (resource.group, resource.plural) == (CRD_GROUP, CRD_PLURAL):
            names = body["spec"]["names"]
            return self._store.entries(key=(body["spec"]["group"], names["plural"]))
        return []

    def delete_contents(self, resource: ResourceType, body: Body) -> None:
        """Delete what is in a namespace or of a CRD."""
        for entry in self.contents(resource, body):
            found = self._store.at(entry)
            if found and not found[1]["metadata"].get("deletionTimestamp"):
                group, plural, namespace, name = entry
                with contextlib.suppress(ApiError):
                    self._store.delete(plural, namespace or None, name, group)

    def _finish_container(self, resource: ResourceType, removed: Body) -> None:
        """Remove the namespace or CRD that waited for ``removed`` to go."""
        waiting: list[Entry] = []
        if namespace := removed["metadata"].get("namespace"):
            waiting.append(("", "namespaces", "", namespace))
        if resource.custom:
            waiting.append((CRD_GROUP, CRD_PLURAL, "", resource.key))
        for entry in waiting:
            self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        """Remove an object that is being deleted if nothing holds it any more."""
        found = self._store.at(entry)
        if found and found[1]["metadata"].get("deletionTimestamp"):
            self._store.replace(found[0], found[1], copy_tree(found[1]))
