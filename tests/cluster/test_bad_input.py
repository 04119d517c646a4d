"""Bad targets, prompts and volumes, through the real operator and the real prepare job."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_cluster import REPOSITORY, OperatorCluster

GOOD = b'{"id": "1", "prompt": "What is fog?"}\n'
TARGETS = {
    "empty-target": ("empty", "is an empty directory"),
    "not-a-llama": ("bert", "BertForMaskedLM"),
    "six-layers": ("six-layers", "at least 7 layers"),
    "no-target": ("nowhere", "nowhere"),
}
PROMPTS = {
    "empty-prompts": (b"", "holds no prompt"),
    "not-json": (b"What is fog?\n", "line 1: not JSON"),
    "not-utf-8": (GOOD + b"\xff\xfe\x00\n", "not UTF-8"),
    "one-bad-line": (GOOD + b'{"prompt": 7}\n' + GOOD, "line 2"),
}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, tiny_target: Path
) -> Iterator[OperatorCluster]:
    """A sandbox with the real jobs, and runs whose input is bad, all applied at once."""
    directory = tmp_path_factory.mktemp("bad-input")
    found = OperatorCluster(directory, REPOSITORY / "sandbox/images.yaml")
    models = directory / "models"
    found.make_references(models)
    (models / "model").symlink_to(tiny_target)
    (models / "empty").mkdir()
    config = json.loads((tiny_target / "config.json").read_bytes())
    edits = {"bert": {"architectures": ["BertForMaskedLM"]}, "six-layers": {"num_hidden_layers": 6}}
    for name, edit in edits.items():
        (models / name).mkdir()
        for file in tiny_target.iterdir():
            if file.name != "config.json":
                (models / name / file.name).symlink_to(file)
        (models / name / "config.json").write_text(json.dumps(config | edit))
    for name, (content, _) in PROMPTS.items():
        encoded = base64.b64encode(content).decode()
        found.sandbox.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name},
                "binaryData": {"p.jsonl": encoded},
            }
        )
    found.start_operator()
    for name, (path, _) in TARGETS.items():
        found.apply_run(name, target={"path": path, "claimName": "models"})
    for name in PROMPTS:
        source = {"configMap": {"name": name, "key": "p.jsonl"}}
        found.apply_run(name, data={"prompts": source}, training={"draftVocabularySize": 64})
    yield found
    found.stop()


@pytest.mark.parametrize(
    ("name", "words"),
    [(name, words) for name, (_, words) in [*TARGETS.items(), *PROMPTS.items()]],
)
def test_the_run_says_what_is_wrong_where_its_user_looks_first(
    cluster: OperatorCluster, name: str, words: str
) -> None:
    cluster.wait_for_phase(name, "Failed")

    failed = cluster.condition(name, "Failed")
    expected = "TargetInvalid" if name in TARGETS else "PromptsInvalid"
    assert failed["reason"] == expected, failed["message"]
    assert words in failed["message"]
    assert "Traceback" not in failed["message"]
    assert words in cluster.sandbox.kubectl("describe", "drun", name)
