from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml
from running_sandbox import RunningSandbox, tool


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": data,
    }


def deployment(name: str, image: str = "example/app:1", **extra: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": image,
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                        },
                        {"name": "side", "image": "example/side:1"},
                    ]
                },
            },
            **extra,
        },
    }


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "example/app:1"}],
                }
            },
            **spec,
        },
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["secret", "generic", "x", "--from-literal=key=value"],
        ["configmap", "x", "--from-literal=key=value"],
        ["serviceaccount", "x"],
        ["job", "x", "--image=example/app:1", "--", "sh", "-c", "exit 0"],
        ["cronjob", "x", "--image=example/app:1", "--schedule=* * * * *", "--", "date"],
        ["deployment", "x", "--image=example/app:1", "--replicas=0", "--port=80"],
        ["service", "clusterip", "x", "--tcp=80:http"],
        ["service", "nodeport", "x", "--tcp=80:8080"],
        ["service", "externalname", "x", "--external-name=example.org"],
        ["role", "x", "--verb=get,list", "--resource=pods,deployments.apps"],
        ["rolebinding", "x", "--role=x", "--serviceaccount=default:default", "--user=me"],
        ["quota", "x", "--hard=cpu=1,memory=2Gi"],
        ["poddisruptionbudget", "x", "--selector=a=b", "--min-available=50%"],
        ["ingress", "x", "--rule=example.org/path*=service:8080,tls=certificate"],
    ],
    ids=lambda arguments: arguments[0] + ("-" + arguments[1] if arguments[0] == "service" else ""),
)
def test_create_in_protobuf_keeps_every_field(
    api: RunningSandbox, namespace: str, arguments: list[str]
) -> None:
    wanted = yaml.safe_load(
        api.kubectl("create", "-n", namespace, "--dry-run=client", "-o", "yaml", *arguments)
    )
    kind = wanted["kind"].lower()
    api.kubectl("create", "-n", namespace, *arguments)
    found = api.get(kind, "x", "-n", namespace)
    wanted["metadata"].pop("creationTimestamp", None)
    wanted.pop("status", None)
    assert _missing(wanted, found) == []


def _missing(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Return the paths of what is in ``wanted`` and not, or differently, in ``found``."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            problem
            for key, value in wanted.items()
            if value not in (None, {}, [])
            for problem in _missing(value, found.get(key), f"{path}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [
            problem
            for index, value in enumerate(wanted)
            for problem in _missing(value, found[index], f"{path}[{index}]")
        ]
    return [] if wanted == found else [f"{path}: {wanted!r} became {found!r}"]


def test_client_side_apply_merges_lists_by_key_and_removes_what_it_no_longer_names(
    api: RunningSandbox, namespace: str
) -> None:
    body = deployment("web")
    assert "created" in api.apply(body, arguments=["-n", namespace])
    assert "unchanged" in api.apply(body, arguments=["-n", namespace])
    api.kubectl("-n", namespace, "set", "env", "deployment/web", "-c", "main", "OTHER=3")
    containers = body["spec"]["template"]["spec"]["containers"]
    containers[0]["image"] = "example/app:2"
    containers[0]["env"] = [{"name": "A", "value": "1"}]
    assert "configured" in api.apply(body, arguments=["-n", namespace])
    main, side = api.get("deployment", "web", "-n", namespace)["spec"]["template"]["spec"][
        "containers"
    ]
    assert main["image"] == "example/app:2"
    assert {entry["name"] for entry in main["env"]} == {"A", "OTHER"}
    assert side["image"] == "example/side:1"


def test_server_side_apply_reports_conflicts_and_yields_to_force(
    api: RunningSandbox, namespace: str
) -> None:
    first = ["-n", namespace, "--server-side", "--field-manager=first"]
    second = ["-n", namespace, "--server-side", "--field-manager=second"]
    api.apply(deployment("web"), arguments=first)
    other = deployment("web", image="example/app:2")
    done = api.run("kubectl", "apply", *second, "-f", "-", stdin=yaml.safe_dump(other), check=False)
    assert done.returncode != 0
    assert (
        'Apply failed with 1 conflict: conflict with "first" using apps/v1:'
        ' .spec.template.spec.containers[name="main"].image' in done.stderr
    )
    api.apply(other, arguments=[*second, "--force-conflicts"])
    found = api.get("deployment", "web", "-n", namespace)
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "example/app:2"
    owners = {
        entry["manager"]
        for entry in found["metadata"]["managedFields"]
        if "f:image"
        in json.dumps(
            entry["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"main"}']
        )
    }
    assert owners == {"second"}


def test_server_side_apply_removes_only_its_own_abandoned_fields(
    api: RunningSandbox, namespace: str
) -> None:
    first = ["-n", namespace, "--server-side", "--field-manager=first"]
    second = ["-n", namespace, "--server-side", "--field-manager=second"]
    api.apply(config_map("shared", a="1", both="2", gone="3"), arguments=first)
    api.apply(config_map("shared", both="2", theirs="4"), arguments=second)
    api.apply(config_map("shared", a="1"), arguments=first)
    assert api.get("configmap", "shared", "-n", namespace)["data"] == {
        "a": "1",
        "both": "2",
        "theirs": "4",
    }


def test_what_was_applied_by_the_client_moves_to_server_side_apply(
    api: RunningSandbox, namespace: str
) -> None:
    for body in (job("work"), deployment("web")):
        api.apply(body, arguments=["-n", namespace])
        kind, name = body["kind"], body["metadata"]["name"]
        before = api.get(kind, name, "-n", namespace)
        done = api.run(
            "kubectl", "-n", namespace, "apply", "--server-side", "-f", "-", stdin=json.dumps(body)
        )
        assert "Warning" not in done.stderr
        after = api.get(kind, name, "-n", namespace)
        assert after["spec"] == before["spec"]
        assert after["metadata"]["generation"] == 1


def test_a_refused_apply_leaves_the_object_alone(api: RunningSandbox, namespace: str) -> None:
    arguments = ["-n", namespace, "apply", "--server-side", "-f", "-"]
    body = deployment("web")
    body["metadata"]["labels"] = {"kept": "yes"}
    api.kubectl(*arguments, stdin=json.dumps(body))
    before = api.get("deployment", "web", "-n", namespace)
    del body["metadata"]["labels"]
    body["spec"]["template"]["spec"]["containers"] = []
    api.refused(*arguments, stdin=json.dumps(body))
    assert api.get("deployment", "web", "-n", namespace) == before


def test_repeated_server_side_apply_changes_nothing(api: RunningSandbox, namespace: str) -> None:
    arguments = ["-n", namespace, "--server-side"]
    api.apply(deployment("web"), arguments=arguments)
    before = api.get("deployment", "web", "-n", namespace)["metadata"]["resourceVersion"]
    api.apply(deployment("web"), arguments=arguments)
    after = api.get("deployment", "web", "-n", namespace)["metadata"]["resourceVersion"]
    assert before == after


def test_watch_shows_changes_as_they_come(api: RunningSandbox, namespace: str) -> None:
    api.apply(config_map("seen", a="1"), arguments=["-n", namespace])
    watching = api.popen("kubectl", "get", "configmaps", "-n", namespace, "-w")
    assert watching.stdout is not None
    try:
        assert watching.stdout.readline().split() == ["NAME", "DATA", "AGE"]
        assert watching.stdout.readline().split()[:2] == ["seen", "1"]
        api.kubectl("-n", namespace, "patch", "configmap", "seen", "-p", '{"data":{"b":"2"}}')
        assert watching.stdout.readline().split()[:2] == ["seen", "2"]
    finally:
        watching.kill()
        watching.wait()


def test_wait_ends_when_a_condition_comes_and_when_an_object_goes(
    api: RunningSandbox, namespace: str
) -> None:
    api.apply(job("work"), arguments=["-n", namespace])
    waiting = api.popen(
        "kubectl", "-n", namespace, "wait", "--for=condition=Complete", "job/work", "--timeout=20s"
    )
    status = {
        "status": {
            "conditions": [
                {
                    "type": "Complete",
                    "status": "True",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        }
    }
    api.kubectl(
        "-n",
        namespace,
        "patch",
        "job",
        "work",
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps(status),
    )
    out, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 0, out
    going = api.popen(
        "kubectl", "-n", namespace, "wait", "--for=delete", "job/work", "--timeout=20s"
    )
    api.kubectl("-n", namespace, "delete", "job", "work")
    out, _ = going.communicate(timeout=30)
    assert going.returncode == 0, out


def test_describe_shows_an_object_with_its_events(api: RunningSandbox, namespace: str) -> None:
    api.apply(job("work"), arguments=["-n", namespace])
    found = api.get("job", "work", "-n", namespace)
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "work.1", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": "work",
                "namespace": namespace,
                "uid": found["metadata"]["uid"],
            },
            "reason": "Started",
            "message": "the work began",
            "type": "Normal",
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "count": 1,
        }
    )
    text = api.kubectl("-n", namespace, "describe", "job", "work")
    assert "the work began" in text
    assert "Parallelism:      1" in text


def test_explain_reads_the_schema(api: RunningSandbox) -> None:
    assert "KIND:       Deployment" in api.kubectl("explain", "deployment.spec.replicas")
    assert "backoffLimit" in api.kubectl("explain", "job.spec")


def test_edit_saves_a_change(api: RunningSandbox, namespace: str) -> None:
    api.apply(config_map("edited", word="before"), arguments=["-n", namespace])
    subprocess.run(
        [tool("kubectl"), "-n", namespace, "edit", "configmap", "edited"],
        env={**api.environment(), "EDITOR": "sed -i s/before/after/"},
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert api.get("configmap", "edited", "-n", namespace)["data"] == {"word": "after"}


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("merge", '{"data":{"a":null,"c":"3"}}'),
        ("strategic", '{"data":{"a":null,"c":"3"}}'),
        ("json", '[{"op":"remove","path":"/data/a"},{"op":"add","path":"/data/c","value":"3"}]'),
    ],
)
def test_patch(api: RunningSandbox, namespace: str, kind: str, patch: str) -> None:
    api.apply(config_map("patched", a="1", b="2"), arguments=["-n", namespace])
    api.kubectl("-n", namespace, "patch", "configmap", "patched", f"--type={kind}", "-p", patch)
    assert api.get("configmap", "patched", "-n", namespace)["data"] == {"b": "2", "c": "3"}


def test_selectors_choose_objects(api: RunningSandbox, namespace: str) -> None:
    for name, tier in (("a", "front"), ("b", "back"), ("c", None)):
        body = config_map(name)
        if tier:
            body["metadata"]["labels"] = {"tier": tier}
        api.apply(body, arguments=["-n", namespace])

    def chosen(*arguments: str) -> str:
        listed = api.kubectl("-n", namespace, "get", "configmap", *arguments, "-o", "name")
        return "".join(line[-1] for line in listed.split())

    assert chosen("-l", "tier=front") == "a"
    assert chosen("-l", "tier in (front,back)") == "ab"
    assert chosen("-l", "tier notin (front)") == "bc"
    assert chosen("-l", "tier") == "ab"
    assert chosen("-l", "!tier") == "c"
    assert chosen("-l", "tier!=back") == "ac"
    assert chosen("--field-selector", "metadata.name=b") == "b"
    assert chosen("--field-selector", "metadata.name!=b") == "ac"
    assert chosen("--chunk-size=1") == "abc"


def test_scale_and_dry_run(api: RunningSandbox, namespace: str) -> None:
    api.apply(deployment("web"), arguments=["-n", namespace])
    api.kubectl("-n", namespace, "scale", "deployment/web", "--replicas=4")
    assert api.get("deployment", "web", "-n", namespace)["spec"]["replicas"] == 4
    api.kubectl("-n", namespace, "scale", "deployment/web", "--replicas=1", "--dry-run=server")
    api.kubectl("-n", namespace, "delete", "deployment/web", "--dry-run=server")
    api.kubectl("-n", namespace, "create", "configmap", "ghost", "--dry-run=server")
    assert api.get("deployment", "web", "-n", namespace)["spec"]["replicas"] == 4
    assert "not found" in api.refused("-n", namespace, "get", "configmap", "ghost")


def test_deleting_a_namespace_removes_its_contents(api: RunningSandbox) -> None:
    api.kubectl("create", "namespace", "short-lived")
    api.apply(config_map("inside"), arguments=["-n", "short-lived"])
    api.kubectl("delete", "namespace", "short-lived")
    assert "not found" in api.refused("get", "namespace", "short-lived")
    api.kubectl("create", "namespace", "short-lived")
    assert api.get("configmaps", "-n", "short-lived")["items"] == []


def test_invalid_objects_are_refused_with_the_field(api: RunningSandbox, namespace: str) -> None:
    arguments = ["-n", namespace, "apply", "-f", "-"]
    unknown = deployment("web", replicsa=3)
    assert 'unknown field "spec.replicsa"' in api.refused(*arguments, stdin=yaml.safe_dump(unknown))
    mistyped = deployment("web", replicas="three")
    assert "spec.replicas" in api.refused(
        *arguments, "--validate=false", stdin=yaml.safe_dump(mistyped)
    )
    always = job("work")
    always["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    assert (
        'spec.template.spec.restartPolicy: Unsupported value: "Always": supported values:'
        ' "OnFailure", "Never"' in api.refused(*arguments, stdin=yaml.safe_dump(always))
    )
    unmatched = deployment("web")
    unmatched["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    assert "`selector` does not match template `labels`" in api.refused(
        *arguments, stdin=yaml.safe_dump(unmatched)
    )
    assert 'Invalid value: "UPPER"' in api.refused(
        *arguments, stdin=yaml.safe_dump(config_map("UPPER"))
    )
    mounted = job("work")
    mounted["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "missing", "mountPath": "/x"}
    ]
    assert 'volumeMounts[0].name: Not found: "missing"' in api.refused(
        *arguments, stdin=yaml.safe_dump(mounted)
    )


def test_a_copy_of_a_finished_job_is_not_finished(api: RunningSandbox, namespace: str) -> None:
    copied = {**job("copied"), "status": {"succeeded": 1}}
    api.apply(copied, arguments=["-n", namespace])
    assert "succeeded" not in api.get("job", "copied", "-n", namespace).get("status", {})


def test_fixed_fields_stay_fixed(api: RunningSandbox, namespace: str) -> None:
    api.apply(job("work"), deployment("web"), arguments=["-n", namespace])
    changed = json.dumps(
        [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "other"}]
    )
    assert "spec.template: Invalid value" in api.refused(
        "-n", namespace, "patch", "job", "work", "--type=json", "-p", changed
    )
    selector = '[{"op":"add","path":"/spec/selector/matchLabels/b","value":"c"}]'
    assert "field is immutable" in api.refused(
        "-n", namespace, "patch", "deployment", "web", "--type=json", "-p", selector
    )


def test_exec_says_why_it_does_not_work(api: RunningSandbox, namespace: str) -> None:
    pod = job("x")["spec"]["template"]
    api.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **pod},
        arguments=["-n", namespace],
    )
    assert "processes of this machine" in api.refused("-n", namespace, "exec", "pod", "--", "ls")


def test_whoami_and_permissions(api: RunningSandbox) -> None:
    assert "system:admin" in api.kubectl("auth", "whoami")
    assert api.kubectl("auth", "can-i", "create", "jobs").strip() == "yes"
