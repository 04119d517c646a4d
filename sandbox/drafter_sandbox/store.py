"""The objects of the sandbox: kept in memory, written to sqlite, watched by anyone.

Everything here runs in the event loop's thread and never waits, so a read
followed by a write without an ``await`` in between is atomic.

Objects handed out are copies; the objects of watch events are shared by all
watchers and must not be changed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

from drafter_sandbox import errors
from drafter_sandbox.errors import ApiError
from drafter_sandbox.gc import FOREGROUND, ORPHAN, Collector
from drafter_sandbox.metadata import content, grace_seconds, merged_metadata, same, timestamp
from drafter_sandbox.naming import generated_name, name_causes
from drafter_sandbox.ownership import Ownership
from drafter_sandbox.persistence import Database, Entry
from drafter_sandbox.resources import CRD_GROUP, CRD_PLURAL, Registry, ResourceType
from drafter_sandbox.selectors import label_predicate
from drafter_sandbox.trees import copy_tree
from drafter_sandbox.watching import Changes, Watch, WatchEvent

__all__ = [
    "Admission",
    "Body",
    "OpenAdmission",
    "Propagation",
    "Store",
    "Tracker",
    "Watch",
    "WatchEvent",
    "timestamp",
]

Body = dict[str, Any]
Propagation = Literal["Background", "Foreground", "Orphan"]
# Sets managedFields: called with the old object (or None) and the new one,
# after admission and before the new one is kept.
Tracker = Callable[[Body | None, Body], None]

FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


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
        self.ownership = Ownership()
        self._collector = Collector(self)
        self._database = Database(path) if path is not None else None
        self._version = self._database.version if self._database else 1
        if self._database is not None:
            self._load(self._database)
        self._changes = Changes(self._version)
        for name in FIRST_NAMESPACES:
            if self.peek(self.registry.find("", "namespaces"), None, name) is None:
                self.create("namespaces", None, {"metadata": {"name": name}})

    def _load(self, database: Database) -> None:
        for entry, body in database.load():
            self._objects.setdefault(entry[:2], {})[entry[2:]] = body
            self.ownership.add(entry, body)
            if entry[:2] == (CRD_GROUP, CRD_PLURAL):
                self.registry.install(body)
        # An owner may have gone just before the end.
        self._collector.suspect(*self.ownership.all_dependents())

    def close(self) -> None:
        """End all watches and close the file."""
        self._changes.close()
        if self._database is not None:
            self._database.close()
            self._database = None

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
        resource = self.registry.find(group, plural)
        if resource_version in (None, "", "0"):
            known = [
                WatchEvent("ADDED", body, None, int(body["metadata"]["resourceVersion"]))
                for body in self.scan(resource, namespace)
            ]
        else:
            known = self._changes.since((group, plural), str(resource_version))
        watch = self._changes.open((group, plural), namespace)
        for event in known:
            watch.deliver(event)
        return watch

    def at(self, entry: Entry) -> tuple[ResourceType, Body] | None:
        """Return the type and the kept object, not to be changed, at a place; or None."""
        body = self._objects.get(entry[:2], {}).get(entry[2:])
        if body is None:
            return None
        try:
            return self.registry.find(entry[0], entry[1]), body
        except ApiError:
            return None

    def entries(
        self, *, namespace: str | None = None, key: tuple[str, str] | None = None
    ) -> Sequence[Entry]:
        """Return the places of all objects in a namespace or of a type."""
        return [
            (*kind, *place)
            for kind, bucket in self._objects.items()
            if key is None or kind == key
            for place in bucket
            if namespace is None or place[0] == namespace
        ]

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
            self.ownership.drop(entry, old)
        if new is None:
            bucket.pop(entry[2:], None)
            event = WatchEvent("DELETED", body, old, self._version)
        else:
            bucket[entry[2:]] = new
            self.ownership.add(entry, new)
            event = WatchEvent("MODIFIED" if old else "ADDED", new, old, self._version)
        if self._database is not None:
            self._database.save(entry, new, self._version)
        self._changes.publish((group, plural), event)
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
            self._suspect(new)
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
            new["metadata"] = merged_metadata(old["metadata"], new.get("metadata") or {})
            if resource.has_status:
                new.pop("status", None)
                if "status" in old:
                    new["status"] = copy_tree(old["status"])
        new["apiVersion"], new["kind"] = resource.api_version, resource.kind
        self.admission.update(self, resource, old, new, subresource)
        if subresource is None and content(old) != content(new):
            generation = old["metadata"].get("generation")
            if generation is not None:
                new["metadata"]["generation"] = generation + 1
        if tracker is not None:
            tracker(old, new)
        return self.replace(resource, old, new, dry_run)

    def replace(self, resource: ResourceType, old: Body, new: Body, dry_run: bool = False) -> Body:
        """Keep a changed object as it is, or remove it when its deletion is complete."""
        if dry_run:
            return copy_tree(new)
        meta = new["metadata"]
        done = meta.get("deletionTimestamp") and not meta.get("finalizers")
        if done and not meta.get("deletionGracePeriodSeconds"):
            if self._collector.contents(resource, new):
                if same(old, new):
                    return copy_tree(old)
                self._commit(resource, old, new)
                return copy_tree(new)
            result = copy_tree(new)
            self._remove_now(resource, new, old)
            return result
        if same(old, new):
            return copy_tree(old)
        self._commit(resource, old, new)
        if old["metadata"].get("ownerReferences") != meta.get("ownerReferences"):
            self._suspect(new)
        return copy_tree(new)

    def _suspect(self, body: Body) -> None:
        place = self.ownership.place(body["metadata"]["uid"])
        if place is not None and body["metadata"].get("ownerReferences"):
            self._collector.suspect(place)

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
        grace = grace_seconds(resource, new, grace_period_seconds)
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
        dependents = self.ownership.dependents(meta["uid"])
        if propagation == "Foreground" and dependents:
            finalizers.append(FOREGROUND)
        if propagation == "Orphan" and dependents:
            finalizers.append(ORPHAN)
        meta["finalizers"] = finalizers
        if not finalizers:
            del meta["finalizers"]
        if resource.plural == "namespaces" and resource.group == "":
            new.setdefault("status", {})["phase"] = "Terminating"
        self.replace(resource, old, new)
        if ORPHAN in finalizers:
            self._collector.orphan_dependents(meta["uid"])
            self._collector.drop_finalizer(resource, new, ORPHAN)
        if FOREGROUND in finalizers:
            self._collector.delete_dependents(meta["uid"])
            self._collector.finish_owner(meta["uid"])
        self._collector.delete_contents(resource, new)
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
            self.replace(resource, old, new)

    def _remove_now(self, resource: ResourceType, last: Body, old: Body) -> None:
        """Take an object out and let go what depended on it."""
        body = copy_tree(last)
        entry = self.ownership.place(old["metadata"]["uid"])
        if entry is None:
            return
        self.ownership.drop(entry, old)
        self._commit(resource, body, None)
        self._collector.removed(resource, body)

    def collect_garbage(self) -> None:
        """Finish the deletions that the last end of the process left half done."""
        self._collector.resume()
        self._collector.collect()
