"""The objects of the sandbox: kept in memory, written to sqlite, watched by anyone.

Everything here runs in the event loop's thread and never waits, so a read
followed by a write without an ``await`` in between is atomic.

Objects handed out are copies; the objects of watch events are shared by all
watchers and must not be changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

from drafter_sandbox import errors
from drafter_sandbox.errors import ApiError
from drafter_sandbox.naming import generated_name, name_causes
from drafter_sandbox.resources import CRD_GROUP, CRD_PLURAL, Registry, ResourceType
from drafter_sandbox.selectors import label_predicate
from drafter_sandbox.trees import copy_tree

Body = dict[str, Any]
# Group, plural, namespace and name.
Entry = tuple[str, str, str, str]
Propagation = Literal["Background", "Foreground", "Orphan"]
# Sets managedFields: called with the old object (or None) and the new one,
# after admission and before the new one is kept.
Tracker = Callable[[Body | None, Body], None]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_HISTORY = 20_000
_POD_GRACE_SECONDS = 30


def timestamp(moment: datetime | None = None) -> str:
    """Return a moment (now by default) as the API writes it, in seconds and UTC."""
    moment = moment or datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class WatchEvent:
    """A change of one object.

    Attributes
    ----------
    type
        ``ADDED``, ``MODIFIED`` or ``DELETED``.
    object
        The object after the change (its last state when deleted).
    previous
        The object before the change, None when it was added.
    resource_version
        Position of the change among all changes.
    """

    type: str
    object: Body
    previous: Body | None = None
    resource_version: int = 0


class Admission(Protocol):
    """What decides whether an object may be kept, and completes it."""

    def create(self, store: Store, resource: ResourceType, body: Body) -> None:
        """Complete a new object in place or raise ``ApiError``."""

    def update(
        self, store: Store, resource: ResourceType, old: Body, body: Body, subresource: str | None
    ) -> None:
        """Complete a changed object in place or raise ``ApiError``."""


class OpenAdmission:
    """Keeps objects as they come."""

    def create(self, store: Store, resource: ResourceType, body: Body) -> None:
        """Accept the object."""

    def update(
        self, store: Store, resource: ResourceType, old: Body, body: Body, subresource: str | None
    ) -> None:
        """Accept the object."""


class Watch(AsyncIterator[WatchEvent]):
    """Changes of one type's objects, from the moment it was opened."""

    def __init__(self, close: Callable[[Watch], None], namespace: str | None) -> None:
        self._queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        self._close = close
        self._namespace = namespace
        self._closed = False

    def deliver(self, event: WatchEvent) -> None:
        """Queue an event if it concerns the watched namespace."""
        if self._namespace is None or event.object["metadata"].get("namespace") == self._namespace:
            self._queue.put_nowait(event)

    def queued(self) -> list[WatchEvent]:
        """Take the events out that have been delivered already."""
        found = []
        while not self._queue.empty():
            event = self._queue.get_nowait()
            if event is None:
                self._queue.put_nowait(None)
                break
            found.append(event)
        return found

    def close(self) -> None:
        """End the watch; a pending ``anext`` stops."""
        if not self._closed:
            self._closed = True
            self._close(self)
            self._queue.put_nowait(None)

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchEvent:
        event = await self._queue.get()
        if event is None:
            raise StopAsyncIteration
        return event


class Store:
    """All objects.

    Parameters
    ----------
    path
        sqlite file that carries the objects over a restart; None keeps them
        in memory only.
    admission
        Completes and checks every object that is written, whoever writes it.
    """

    def __init__(self, path: Path | None, admission: Admission | None = None) -> None:
        self.registry = Registry()
        self.admission: Admission = admission or OpenAdmission()
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Body]] = {}
        self._uids: dict[str, Entry] = {}
        self._dependents: dict[str, set[Entry]] = {}
        self._suspects: set[Entry] = set()
        self._watches: dict[tuple[str, str], list[Watch]] = {}
        self._history: deque[tuple[tuple[str, str], WatchEvent]] = deque()
        self._database: sqlite3.Connection | None = None
        self._version = 1
        if path is not None:
            self._open(path)
        # Changes before this one are not remembered.
        self._horizon = self._version
        for name in FIRST_NAMESPACES:
            if self.peek(self.registry.find("", "namespaces"), None, name) is None:
                self.create("namespaces", None, {"metadata": {"name": name}})

    # Persistence

    def _open(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        # The file must survive the end of the process, not of the machine.
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS objects (grp TEXT, plural TEXT, namespace TEXT, name TEXT,"
            " body TEXT NOT NULL, PRIMARY KEY (grp, plural, namespace, name)) WITHOUT ROWID"
        )
        self._database.execute("CREATE TABLE IF NOT EXISTS counter (version INTEGER NOT NULL)")
        row = self._database.execute("SELECT version FROM counter").fetchone()
        if row is None:
            self._database.execute("INSERT INTO counter VALUES (1)")
        else:
            self._version = int(row[0])
        rows = self._database.execute("SELECT grp, plural, namespace, name, body FROM objects")
        for group, plural, namespace, name, text in rows.fetchall():
            body = json.loads(text)
            self._objects.setdefault((group, plural), {})[(namespace, name)] = body
            self._index((group, plural, namespace, name), body)
            if (group, plural) == (CRD_GROUP, CRD_PLURAL):
                self.registry.install(body)
        self._suspects.update(entry for entries in self._dependents.values() for entry in entries)

    def close(self) -> None:
        """End all watches and close the file."""
        for watches in list(self._watches.values()):
            for watch in list(watches):
                watch.close()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _save(self, entry: Entry, body: Body | None) -> None:
        if self._database is None:
            return
        self._database.execute("BEGIN")
        if body is None:
            self._database.execute(
                "DELETE FROM objects WHERE grp=? AND plural=? AND namespace=? AND name=?", entry
            )
        else:
            self._database.execute(
                "INSERT OR REPLACE INTO objects VALUES (?,?,?,?,?)",
                (*entry, json.dumps(body, separators=(",", ":"))),
            )
        self._database.execute("UPDATE counter SET version=?", (self._version,))
        self._database.execute("COMMIT")

    # Reading

    @property
    def resource_version(self) -> str:
        """Version of the newest change."""
        return str(self._version)

    def _bucket(self, group: str, plural: str) -> dict[tuple[str, str], Body]:
        return self._objects.setdefault((group, plural), {})

    def peek(self, resource: ResourceType, namespace: str | None, name: str) -> Body | None:
        """Return the kept object itself, which must not be changed, or None."""
        bucket = self._bucket(resource.group, resource.plural)
        return bucket.get((namespace or "", name))

    def get(self, plural: str, namespace: str | None, name: str, group: str = "") -> Body | None:
        """Return a copy of an object, or None when there is none."""
        body = self.peek(self.registry.find(group, plural), namespace, name)
        return copy_tree(body) if body is not None else None

    def scan(self, resource: ResourceType, namespace: str | None = None) -> Iterator[Body]:
        """Yield the kept objects themselves, which must not be changed, by namespace and name."""
        bucket = self._bucket(resource.group, resource.plural)
        for key in sorted(bucket):
            if namespace is None or key[0] == namespace:
                yield bucket[key]

    def list(
        self,
        plural: str,
        namespace: str | None = None,
        group: str = "",
        label_selector: Body | str | None = None,
    ) -> list[Body]:
        """Return copies of a type's objects, of all namespaces when none is given."""
        matches = label_predicate(label_selector)
        resource = self.registry.find(group, plural)
        return [copy_tree(body) for body in self.scan(resource, namespace) if matches(body)]

    def watch(
        self,
        plural: str,
        group: str = "",
        namespace: str | None = None,
        resource_version: str | None = None,
    ) -> Watch:
        """Open a watch; changes after this call are delivered even before it is iterated.

        Parameters
        ----------
        resource_version
            Changes after this version are delivered first. None or ``0``
            begins with an ``ADDED`` event for every object there is.

        Raises
        ------
        ApiError
            410 when the changes since then are no longer remembered.
        """
        key = (group, plural)
        resource = self.registry.find(group, plural)
        watch = Watch(lambda closed: self._watches[key].remove(closed), namespace)
        if resource_version in (None, "", "0"):
            for body in self.scan(resource, namespace):
                watch.deliver(WatchEvent("ADDED", body, None, _version_of(body)))
        else:
            try:
                since = int(str(resource_version))
            except ValueError:
                raise errors.bad_request(
                    f"Invalid value for resourceVersion: {resource_version!r}"
                ) from None
            if since < self._horizon:
                raise errors.expired(f"too old resource version: {since} ({self._horizon})")
            for changed, event in self._history:
                if changed == key and event.resource_version > since:
                    watch.deliver(event)
        self._watches.setdefault(key, []).append(watch)
        return watch

    # Writing

    def _commit(
        self,
        resource: ResourceType,
        old: Body | None,
        new: Body | None,
    ) -> None:
        """Keep ``new`` in the place of ``old`` and tell everyone."""
        body = new if new is not None else old
        assert body is not None
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        group, plural = resource.group, resource.plural
        namespace = body["metadata"].get("namespace") or ""
        entry = (group, plural, namespace, body["metadata"]["name"])
        bucket = self._bucket(group, plural)
        if old is not None:
            self._unindex(entry, old)
        if new is None:
            bucket.pop(entry[2:], None)
            event = WatchEvent("DELETED", body, old, self._version)
        else:
            bucket[entry[2:]] = new
            self._index(entry, new)
            event = WatchEvent("MODIFIED" if old else "ADDED", new, old, self._version)
        self._save(entry, new)
        self._history.append(((group, plural), event))
        if len(self._history) > _HISTORY:
            self._horizon = self._history.popleft()[1].resource_version
        for watch in list(self._watches.get((group, plural), ())):
            watch.deliver(event)
        if (group, plural) == (CRD_GROUP, CRD_PLURAL):
            if new is None:
                self.registry.uninstall(body)
            else:
                self.registry.install(new)

    def create(
        self,
        plural: str,
        namespace: str | None,
        body: Body,
        group: str = "",
        *,
        tracker: Tracker | None = None,
        dry_run: bool = False,
        version: str | None = None,
    ) -> Body:
        """Keep a new object and return it completed.

        Raises
        ------
        ApiError
            409 when the name is taken, 422 when a field breaks a rule, 404
            when the namespace does not exist, 403 when it is being deleted.
        """
        resource = self.registry.find(group, plural, version)
        new = copy_tree(body)
        new["apiVersion"], new["kind"] = resource.api_version, resource.kind
        meta = new.setdefault("metadata", {})
        if resource.namespaced:
            meta["namespace"] = namespace or meta.get("namespace") or "default"
            self._check_namespace(resource, meta)
        else:
            meta.pop("namespace", None)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = generated_name(meta["generateName"])
        if causes := name_causes(resource, meta):
            raise errors.invalid(resource.kind, resource.group, meta.get("name") or "", causes)
        bucket = self._bucket(resource.group, resource.plural)
        if (meta.get("namespace") or "", meta["name"]) in bucket:
            raise errors.already_exists(resource.plural, resource.group, meta["name"])
        for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"):
            meta.pop(name, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = timestamp()
        if resource.has_status and resource.custom:
            new.pop("status", None)
        if resource.custom or "spec" in new:
            meta["generation"] = 1
        self.admission.create(self, resource, new)
        if tracker is not None:
            tracker(None, new)
        if not dry_run:
            self._commit(resource, None, new)
            self.collect_later(new)
            if (resource.group, resource.plural) == ("", "namespaces"):
                self.create("serviceaccounts", meta["name"], {"metadata": {"name": "default"}})
        return copy_tree(new)

    def _check_namespace(self, resource: ResourceType, meta: Body) -> None:
        namespaces = self.registry.find("", "namespaces")
        found = self.peek(namespaces, None, meta["namespace"])
        if found is None:
            raise errors.not_found("namespaces", "", meta["namespace"])
        if found["metadata"].get("deletionTimestamp"):
            raise errors.forbidden(
                resource.plural,
                resource.group,
                meta.get("name") or meta.get("generateName") or "",
                f"unable to create new content in namespace {meta['namespace']} because it is"
                " being terminated",
            )

    def _current(
        self, resource: ResourceType, namespace: str | None, name: str, uid: str | None
    ) -> Body:
        old = self.peek(resource, namespace if resource.namespaced else None, name)
        if old is None:
            raise errors.not_found(resource.plural, resource.group, name)
        if uid and uid != old["metadata"]["uid"]:
            raise errors.conflict(
                resource.plural,
                resource.group,
                name,
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
                f"{old['metadata']['uid']}",
            )
        return old

    def update(
        self,
        plural: str,
        namespace: str | None,
        name: str,
        body: Body,
        group: str = "",
        subresource: str | None = None,
        *,
        tracker: Tracker | None = None,
        dry_run: bool = False,
        version: str | None = None,
    ) -> Body:
        """Replace an object and return it completed.

        With ``subresource="status"`` only ``status`` is taken from ``body``.
        Without one, ``status`` is not taken if the type has a ``status``
        subresource. An object whose last finalizer goes while it is being
        deleted is removed.

        Raises
        ------
        ApiError
            404 without such an object, 409 when ``metadata.resourceVersion``
            is given and outdated, 422 when a field breaks a rule.
        """
        resource = self.registry.find(group, plural, version)
        meta = body.get("metadata") or {}
        old = self._current(resource, namespace, name, meta.get("uid"))
        expected = meta.get("resourceVersion")
        if expected and expected != old["metadata"]["resourceVersion"]:
            raise errors.conflict(
                resource.plural,
                resource.group,
                name,
                "the object has been modified; please apply your changes to the latest version"
                " and try again",
            )
        if subresource == "status":
            new = copy_tree(old)
            if "status" in body:
                new["status"] = copy_tree(body["status"])
            else:
                new.pop("status", None)
            if "managedFields" in meta:
                new["metadata"]["managedFields"] = copy_tree(meta["managedFields"])
        else:
            new = copy_tree(body)
            new["metadata"] = _merged_metadata(old["metadata"], new.get("metadata") or {})
            if resource.has_status:
                new.pop("status", None)
                if "status" in old:
                    new["status"] = copy_tree(old["status"])
        new["apiVersion"], new["kind"] = resource.api_version, resource.kind
        self.admission.update(self, resource, old, new, subresource)
        if subresource is None and _content(old) != _content(new):
            generation = old["metadata"].get("generation")
            if generation is not None:
                new["metadata"]["generation"] = generation + 1
        if tracker is not None:
            tracker(old, new)
        return self._replace(resource, old, new, dry_run)

    def _replace(self, resource: ResourceType, old: Body, new: Body, dry_run: bool = False) -> Body:
        """Keep a changed object, or remove it when its deletion is complete."""
        if dry_run:
            return copy_tree(new)
        meta = new["metadata"]
        done = meta.get("deletionTimestamp") and not meta.get("finalizers")
        if done and not meta.get("deletionGracePeriodSeconds"):
            if self._holds_contents(resource, new):
                if _same(old, new):
                    return copy_tree(old)
                self._commit(resource, old, new)
                return copy_tree(new)
            result = copy_tree(new)
            self._remove_now(resource, new, old)
            return result
        if _same(old, new):
            return copy_tree(old)
        self._commit(resource, old, new)
        if old["metadata"].get("ownerReferences") != meta.get("ownerReferences"):
            self.collect_later(new)
        return copy_tree(new)

    def patch_status(
        self,
        plural: str,
        namespace: str | None,
        name: str,
        mutate: Callable[[Body], None],
        group: str = "",
    ) -> Body:
        """Change an object's ``status`` in place through ``mutate``, which receives it."""
        resource = self.registry.find(group, plural)
        body = copy_tree(self._current(resource, namespace, name, None))
        mutate(body.setdefault("status", {}))
        return self.update(plural, namespace, name, body, group, "status")

    # Deleting

    def delete(
        self,
        plural: str,
        namespace: str | None,
        name: str,
        group: str = "",
        propagation: Propagation = "Background",
        uid: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
    ) -> Body | None:
        """Delete an object.

        It stays, with a ``deletionTimestamp``, while it has finalizers, while
        its dependents go (``Foreground``), while a Pod on a node ends (the
        node then calls :meth:`remove`), while a namespace or a CRD has
        contents.

        Returns
        -------
        dict or None
            The object if it stays for now, None if it is gone.

        Raises
        ------
        ApiError
            404 without such an object, 409 when ``uid`` or
            ``resource_version`` differ from the object's.
        """
        resource = self.registry.find(group, plural)
        old = self._current(resource, namespace, name, uid)
        if resource_version and resource_version != old["metadata"]["resourceVersion"]:
            raise errors.conflict(
                resource.plural,
                resource.group,
                name,
                f"Precondition failed: ResourceVersion in precondition: {resource_version},"
                f" ResourceVersion in object meta: {old['metadata']['resourceVersion']}",
            )
        if dry_run:
            return copy_tree(old)
        new = copy_tree(old)
        meta = new["metadata"]
        grace = _grace(resource, new, grace_period_seconds)
        earlier = meta.get("deletionTimestamp")
        if not earlier:
            meta["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
            meta["deletionGracePeriodSeconds"] = grace
            if "generation" in meta:
                meta["generation"] += 1
        else:
            # A grace period may only become shorter.
            meta["deletionGracePeriodSeconds"] = min(
                grace, meta.get("deletionGracePeriodSeconds") or 0
            )
        finalizers = [f for f in meta.get("finalizers") or [] if f not in (FOREGROUND, ORPHAN)]
        dependents = self._dependents.get(meta["uid"])
        if propagation == "Foreground" and dependents:
            finalizers.append(FOREGROUND)
        if propagation == "Orphan" and dependents:
            finalizers.append(ORPHAN)
        meta["finalizers"] = finalizers
        if not finalizers:
            del meta["finalizers"]
        if resource.plural == "namespaces" and resource.group == "":
            new.setdefault("status", {})["phase"] = "Terminating"
        self._replace(resource, old, new)
        if ORPHAN in finalizers:
            self._orphan_dependents(meta["uid"])
            self._drop_finalizer(resource, new, ORPHAN)
        if FOREGROUND in finalizers:
            self._delete_dependents(meta["uid"], "Foreground")
            self._finish_foreground(meta["uid"])
        self._delete_contents(resource, new)
        left = self.peek(resource, namespace if resource.namespaced else None, name)
        if left is not None and left["metadata"]["uid"] == meta["uid"]:
            return copy_tree(left)
        return None

    def remove(
        self, plural: str, namespace: str | None, name: str, group: str = "", uid: str | None = None
    ) -> None:
        """Remove an object for good, as the kubelet removes a Pod that has ended.

        Finalizers are respected: with one, the object stays, marked, until
        the last of them goes. Removing what is gone already is no error.
        """
        resource = self.registry.find(group, plural)
        with contextlib.suppress(ApiError):
            old = self._current(resource, namespace, name, uid)
            new = copy_tree(old)
            new["metadata"].setdefault("deletionTimestamp", timestamp())
            new["metadata"]["deletionGracePeriodSeconds"] = 0
            self._replace(resource, old, new)

    def _remove_now(self, resource: ResourceType, last: Body, old: Body | None = None) -> None:
        """Take an object out and let go what depended on it."""
        body = copy_tree(last)
        self._commit_removal(resource, old or last, body)
        uid = body["metadata"]["uid"]
        for entry in sorted(self._dependents.get(uid, ())):
            self._release(entry, uid)
        for owner in body["metadata"].get("ownerReferences") or []:
            self._finish_foreground(owner["uid"])
        self._finish_container(resource, body)

    def _commit_removal(self, resource: ResourceType, old: Body, last: Body) -> None:
        meta = old["metadata"]
        group, plural = resource.group, resource.plural
        kept = self._bucket(group, plural).get((meta.get("namespace") or "", meta["name"]))
        if kept is None or kept["metadata"]["uid"] != meta["uid"]:
            return
        self._unindex((group, plural, meta.get("namespace") or "", meta["name"]), kept)
        self._commit(resource, last, None)

    # Owner references

    def _index(self, entry: Entry, body: Body) -> None:
        meta = body["metadata"]
        self._uids[meta["uid"]] = entry
        for owner in meta.get("ownerReferences") or []:
            self._dependents.setdefault(owner["uid"], set()).add(entry)

    def _unindex(self, entry: Entry, body: Body) -> None:
        meta = body["metadata"]
        self._uids.pop(meta["uid"], None)
        for owner in meta.get("ownerReferences") or []:
            entries = self._dependents.get(owner["uid"])
            if entries:
                entries.discard(entry)
                if not entries:
                    del self._dependents[owner["uid"]]

    def _entry(self, entry: Entry) -> tuple[ResourceType, Body] | None:
        body = self._objects.get(entry[:2], {}).get(entry[2:])
        if body is None:
            return None
        try:
            return self.registry.find(entry[0], entry[1]), body
        except ApiError:
            return None

    def _orphan_dependents(self, uid: str) -> None:
        for entry in sorted(self._dependents.get(uid, ())):
            found = self._entry(entry)
            if found:
                new = copy_tree(found[1])
                _forget_owner(new, uid)
                self._replace(found[0], found[1], new)

    def _delete_dependents(self, uid: str, propagation: Propagation) -> None:
        for entry in sorted(self._dependents.get(uid, ())):
            found = self._entry(entry)
            if found and not found[1]["metadata"].get("deletionTimestamp"):
                meta = found[1]["metadata"]
                self.delete(entry[1], meta.get("namespace"), meta["name"], entry[0], propagation)

    def _release(self, entry: Entry, gone: str) -> None:
        """Delete a dependent whose owner is gone, unless another owner remains."""
        found = self._entry(entry)
        if found is None:
            return
        resource, body = found
        owners = body["metadata"].get("ownerReferences") or []
        if any(owner["uid"] != gone and owner["uid"] in self._uids for owner in owners):
            new = copy_tree(body)
            _forget_owner(new, gone)
            self._replace(resource, body, new)
        elif not body["metadata"].get("deletionTimestamp"):
            meta = body["metadata"]
            self.delete(resource.plural, meta.get("namespace"), meta["name"], resource.group)

    def _finish_foreground(self, uid: str) -> None:
        """Let an owner go that waits for its dependents, once none blocks it."""
        entry = self._uids.get(uid)
        found = self._entry(entry) if entry else None
        if found is None or FOREGROUND not in (found[1]["metadata"].get("finalizers") or []):
            return
        for dependent in self._dependents.get(uid, ()):
            other = self._entry(dependent)
            if other and any(
                owner["uid"] == uid and owner.get("blockOwnerDeletion")
                for owner in other[1]["metadata"].get("ownerReferences") or []
            ):
                return
        self._drop_finalizer(found[0], found[1], FOREGROUND)

    def _drop_finalizer(self, resource: ResourceType, body: Body, finalizer: str) -> None:
        meta = body["metadata"]
        old = self.peek(resource, meta.get("namespace"), meta["name"])
        if old is None or old["metadata"]["uid"] != meta["uid"]:
            return
        new = copy_tree(old)
        rest = [name for name in new["metadata"].get("finalizers") or [] if name != finalizer]
        new["metadata"]["finalizers"] = rest
        if not rest:
            del new["metadata"]["finalizers"]
        self._replace(resource, old, new)

    def collect_later(self, body: Body) -> None:
        """Have an object with owners checked soon: without any existing owner it is deleted."""
        meta = body["metadata"]
        if not meta.get("ownerReferences"):
            return
        self._suspects.add(self._uids[meta["uid"]])
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(self.collect_garbage)

    def collect_garbage(self) -> None:
        """Delete the suspected objects none of whose owners exist."""
        suspects, self._suspects = self._suspects, set()
        for entry in sorted(suspects):
            found = self._entry(entry)
            if found is None:
                continue
            owners = found[1]["metadata"].get("ownerReferences") or []
            if owners and all(owner["uid"] not in self._uids for owner in owners):
                self._release(entry, owners[0]["uid"])

    # Namespaces and CRDs hold contents that go before them

    def _contents(self, resource: ResourceType, body: Body) -> Sequence[tuple[ResourceType, Body]]:
        name = body["metadata"]["name"]
        if (resource.group, resource.plural) == ("", "namespaces"):
            return [
                (self.registry.find(*key), item)
                for key, bucket in self._objects.items()
                for (namespace, _), item in list(bucket.items())
                if namespace == name
            ]
        if (resource.group, resource.plural) == (CRD_GROUP, CRD_PLURAL):
            key = (body["spec"]["group"], body["spec"]["names"]["plural"])
            bucket = self._objects.get(key, {})
            return [(self.registry.find(*key), item) for item in list(bucket.values())]
        return []

    def _holds_contents(self, resource: ResourceType, body: Body) -> bool:
        return bool(self._contents(resource, body))

    def _delete_contents(self, resource: ResourceType, body: Body) -> None:
        for kind, item in self._contents(resource, body):
            meta = item["metadata"]
            if not meta.get("deletionTimestamp"):
                with contextlib.suppress(ApiError):
                    self.delete(kind.plural, meta.get("namespace"), meta["name"], kind.group)

    def _finish_container(self, resource: ResourceType, removed: Body) -> None:
        """Remove the namespace or CRD that waited for ``removed`` to go."""
        waiting = []
        if namespace := removed["metadata"].get("namespace"):
            kind = self.registry.find("", "namespaces")
            waiting.append((kind, self.peek(kind, None, namespace)))
        if resource.custom:
            kind = self.registry.find(CRD_GROUP, CRD_PLURAL)
            waiting.append((kind, self.peek(kind, None, resource.key)))
        for kind, body in waiting:
            if body is not None and body["metadata"].get("deletionTimestamp"):
                self._replace(kind, body, copy_tree(body))


def _version_of(body: Body) -> int:
    return int(body["metadata"]["resourceVersion"])


def _same(old: Body, new: Body) -> bool:
    """Whether a write changes nothing but the time of a managed fields entry."""
    if old == new:
        return True
    left, right = dict(old["metadata"]), dict(new["metadata"])
    left["managedFields"] = _untimed(left)
    right["managedFields"] = _untimed(right)
    left.pop("resourceVersion", None)
    right.pop("resourceVersion", None)
    return left == right and {**old, "metadata": 0} == {**new, "metadata": 0}


def _untimed(meta: Body) -> list[Body]:
    return [
        {key: value for key, value in entry.items() if key != "time"}
        for entry in meta.get("managedFields") or []
    ]


def _content(body: Body) -> Body:
    return {
        key: value
        for key, value in body.items()
        if key not in ("metadata", "status", "apiVersion", "kind")
    }


def _merged_metadata(old: Body, new: Body) -> Body:
    """Return the new metadata with what only the server may set taken from the old."""
    for name in (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ):
        if name in old:
            new[name] = old[name]
        else:
            new.pop(name, None)
    if old.get("deletionTimestamp"):
        # No finalizer may be added once the object is being deleted.
        kept = old.get("finalizers") or []
        new["finalizers"] = [name for name in new.get("finalizers") or [] if name in kept]
        if not new["finalizers"]:
            del new["finalizers"]
    if "managedFields" not in new and "managedFields" in old:
        new["managedFields"] = old["managedFields"]
    return new


def _forget_owner(body: Body, uid: str) -> None:
    meta = body["metadata"]
    meta["ownerReferences"] = [o for o in meta["ownerReferences"] if o["uid"] != uid]
    if not meta["ownerReferences"]:
        del meta["ownerReferences"]


def _grace(resource: ResourceType, body: Body, asked: int | None) -> int:
    """Return the seconds an object may take to end; only Pods on a node take any."""
    if (resource.group, resource.plural) != ("", "pods"):
        return 0
    spec = body.get("spec") or {}
    if not spec.get("nodeName"):
        return 0
    if (body.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return max(0, asked)
    return int(spec.get("terminationGracePeriodSeconds", _POD_GRACE_SECONDS))
