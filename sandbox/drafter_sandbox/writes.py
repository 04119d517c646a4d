"""Writes that clients make: create, replace, patch and apply, with their field managers."""

from __future__ import annotations

from typing import Any

from drafter_sandbox import apply as server_side
from drafter_sandbox import errors, patches, schemas
from drafter_sandbox.errors import ApiError, bad_request
from drafter_sandbox.requests import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Target,
    WriteOptions,
)
from drafter_sandbox.resources import ResourceType
from drafter_sandbox.store import Body, Store, Tracker, timestamp
from drafter_sandbox.trees import copy_tree
from drafter_sandbox.validation import validate

_STATUS_PARTS = ("apiVersion", "kind", "status")


class Writer:
    """Carries out the writes of one request.

    Attributes
    ----------
    warnings
        What the client should be told although the write succeeded.
    """

    def __init__(self, store: Store, target: Target, options: WriteOptions) -> None:
        self._store = store
        self._target = target
        self._options = options
        self.warnings: list[str] = []

    @property
    def _resource(self) -> ResourceType:
        return self._target.resource

    def create(self, body: Any) -> Body:
        """Create an object."""
        body = self._checked(body)
        body["metadata"].pop("managedFields", None)
        self._check_fields(body)
        # A Node reports itself; what else is created has no state yet.
        if self._resource.has_status and self._resource.kind != "Node":
            body.pop("status", None)
        return self._store.create(
            self._resource.plural,
            self._target.namespace,
            body,
            self._resource.group,
            tracker=self._tracker(),
            dry_run=self._options.dry_run,
            version=self._resource.version,
        )

    def replace(self, body: Any) -> Body:
        """Replace an object or its status."""
        body = self._checked(body)
        name = body["metadata"].setdefault("name", self._target.name)
        if name != self._target.name:
            raise bad_request(
                f"the name of the object ({name}) does not match the name on the URL"
                f" ({self._target.name})"
            )
        self._check_fields(body)
        return self._update(body)

    def patch(self, content: Any, content_type: str) -> tuple[Body, bool]:
        """Patch an object or its status.

        Returns
        -------
        tuple
            The object, and whether it was created.
        """
        kind = content_type.split(";")[0].strip()
        if kind == APPLY_PATCH:
            return self._apply(content)
        allowed = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
        if not self._resource.custom:
            allowed.append(STRATEGIC_PATCH)
        if kind not in allowed:
            raise ApiError(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: "
                + ", ".join(allowed),
            )
        live = self._live()
        if live is None:
            raise errors.not_found(
                self._resource.plural, self._resource.group, self._target.name or ""
            )
        before = copy_tree(live)
        if kind == JSON_PATCH:
            body = patches.json_patch(before, content)
        elif not isinstance(content, dict):
            raise bad_request("the patch must be an object")
        elif kind == MERGE_PATCH:
            body = patches.merge_patch(before, content)
        else:
            schema = schemas.schema_of(self._resource)
            body = patches.strategic_merge_patch(schema, before, content)
        body = self._checked(body)
        self._check_fields(body)
        return self._update(body), False

    def _live(self) -> Body | None:
        live = self._store.peek(self._resource, self._target.namespace, self._target.name or "")
        if live is None:
            return None
        # Kept in another version, an object is served in the one asked for.
        return {**live, "apiVersion": self._resource.api_version}

    def _update(self, body: Body) -> Body:
        return self._store.update(
            self._resource.plural,
            self._target.namespace,
            self._target.name or "",
            body,
            self._resource.group,
            self._target.subresource,
            tracker=self._tracker(),
            dry_run=self._options.dry_run,
            version=self._resource.version,
        )

    def _manager(self, operation: str) -> server_side.Manager:
        return server_side.Manager(
            self._options.manager,
            operation,
            self._resource.api_version,
            self._target.subresource or "",
        )

    def _tracker(self) -> Tracker:
        schema = schemas.schema_of(self._resource)
        manager = self._manager("Update")

        def track(old: Body | None, new: Body) -> None:
            server_side.track_update(schema, old, new, manager, timestamp())

        return track

    def _apply(self, body: Any) -> tuple[Body, bool]:
        body = self._checked(body)
        name = body["metadata"].setdefault("name", self._target.name)
        if name != self._target.name:
            raise bad_request(
                f"the name of the object ({name}) does not match the name on the URL"
                f" ({self._target.name})"
            )
        if body["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        schema = schemas.schema_of(self._resource)
        schemas.drop_nulls(schema, body, custom=self._resource.custom)
        self._check_applied_fields(schema, body)
        body = self._own_part(body)
        live = self._live()
        expected = body["metadata"].pop("resourceVersion", None)
        uid = body["metadata"].pop("uid", None)
        if live is None and (self._target.subresource or uid or expected):
            raise errors.not_found(
                self._resource.plural, self._resource.group, self._target.name or ""
            )
        result = server_side.apply(
            schema,
            live,
            body,
            self._manager("Apply"),
            force=self._options.force,
            time=timestamp(),
        )
        if live is None:
            created = self._store.create(
                self._resource.plural,
                self._target.namespace,
                result,
                self._resource.group,
                dry_run=self._options.dry_run,
                version=self._resource.version,
            )
            return created, True
        if expected:
            result["metadata"]["resourceVersion"] = expected
        if uid:
            result["metadata"]["uid"] = uid
        updated = self._store.update(
            self._resource.plural,
            self._target.namespace,
            self._target.name or "",
            result,
            self._resource.group,
            self._target.subresource,
            dry_run=self._options.dry_run,
            version=self._resource.version,
        )
        return updated, False

    def _own_part(self, body: Body) -> Body:
        """Return the part of an applied object that its endpoint writes."""
        if self._target.subresource == "status":
            kept: Body = {key: body[key] for key in _STATUS_PARTS if key in body}
            names = ("name", "namespace", "resourceVersion", "uid")
            meta = {key: body["metadata"][key] for key in names if key in body["metadata"]}
            return {**kept, "metadata": meta}
        if self._resource.has_status:
            return {key: value for key, value in body.items() if key != "status"}
        return body

    def _checked(self, body: Any) -> Body:
        """Return a body after a check that it is an object of the resource's kind."""
        resource = self._resource
        if not isinstance(body, dict):
            raise bad_request(f"the body of the request must be a {resource.kind}")
        if not isinstance(body.get("metadata"), dict):
            if body.get("metadata") is not None:
                raise bad_request("metadata must be an object")
            body["metadata"] = {}
        schema = schemas.definitions()[schemas.OBJECT_META]
        schemas.drop_nulls(schema, body["metadata"], custom=False)
        if causes := validate(schema, body["metadata"], "metadata"):
            raise errors.invalid(
                resource.kind, resource.group, str(body["metadata"].get("name") or ""), causes
            )
        kind = body.get("kind") or resource.kind
        api_version = body.get("apiVersion") or resource.api_version
        if (kind, api_version) != (resource.kind, resource.api_version):
            raise bad_request(
                f"the API version and kind in the data ({api_version}, Kind={kind}) do not match"
                f" the expected ones ({resource.api_version}, Kind={resource.kind})"
            )
        namespace = body["metadata"].get("namespace")
        if self._target.namespace and namespace not in (None, "", self._target.namespace):
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )
        return body

    def _check_fields(self, body: Body) -> None:
        """Refuse, or warn of, fields that the resource does not have."""
        if self._options.validation == "Ignore":
            return
        unknown = schemas.prune(schemas.schema_of(self._resource), copy_tree(body))
        problems = [f'unknown field "{path}"' for path in unknown]
        if not problems:
            return
        if self._options.validation == "Warn":
            self.warnings += problems
            return
        resource = self._resource
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a'
            f" {resource.kind}: strict decoding error: {', '.join(problems)}"
        )

    def _check_applied_fields(self, schema: schemas.Schema, body: Body) -> None:
        # An apply has no lenient form: what has no schema can have no owner.
        unknown = schemas.prune(schema, copy_tree(body))
        if unknown:
            resource = self._resource
            listed = "\n".join(f".{path}: field not declared in schema" for path in unknown)
            where = f"{self._target.namespace or ''}/{self._target.name}"
            raise bad_request(
                f"failed to create typed patch object ({where}; {resource.api_version},"
                f" Kind={resource.kind}): {listed}"
            )
