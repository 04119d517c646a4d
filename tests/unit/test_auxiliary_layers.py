import ast
import importlib.util
from pathlib import Path

import pytest

from drafter_jobs.contract.auxiliary_layers import (
    CONVENTIONS,
    Convention,
    captured_layers,
    engine_ids,
)

HOOK = "set_eagle3_layers_to_capture"


@pytest.mark.parametrize("convention", list(Convention))
@pytest.mark.parametrize("wanted", [[2, 15, 27], [3, 10, 20], [0, 4, 8], [5]])
def test_engine_captures_the_layers_the_drafter_was_trained_on(
    convention: Convention, wanted: list[int]
) -> None:
    ids = engine_ids(convention, wanted, 30)
    assert captured_layers(convention, ids, 30) == wanted


def test_llama_ids_are_one_less() -> None:
    assert engine_ids(Convention.PLUS_ONE, [2, 15, 27], 30) == [1, 14, 26]


def test_deepseek_default_layers_are_written_so_that_old_engines_agree() -> None:
    # sglang 0.5.11 and 0.5.12 added one for these targets whatever the first id.
    ids = engine_ids(Convention.VERBATIM_UNLESS_FIRST_IS_ONE, [2, 30, 58], 61)
    assert ids == [1, 29, 57]
    assert [layer + 1 for layer in ids] == [2, 30, 58]


def test_deepseek_custom_layers_are_verbatim() -> None:
    assert engine_ids(Convention.VERBATIM_UNLESS_FIRST_IS_ONE, [4, 30, 58], 61) == [4, 30, 58]


def test_final_layer_is_possible_for_gpt_oss_only() -> None:
    assert engine_ids(Convention.PLUS_ONE_UNLESS_FINAL, [2, 12, 24], 24) == [1, 11, 23]
    with pytest.raises(ValueError, match=r"within \[0, 23\]"):
        engine_ids(Convention.PLUS_ONE, [2, 12, 24], 24)


@pytest.mark.parametrize("wanted", [[15, 2, 27], [2, 2, 27]])
def test_unordered_layers_are_refused(wanted: list[int]) -> None:
    with pytest.raises(ValueError, match="strictly ascending"):
        engine_ids(Convention.PLUS_ONE, wanted, 30)


def test_deepseek_cannot_capture_layer_one_first() -> None:
    with pytest.raises(ValueError, match="first layer other than 1"):
        engine_ids(Convention.VERBATIM_UNLESS_FIRST_IS_ONE, [1, 30, 58], 61)


@pytest.fixture(scope="module")
def engine_hooks() -> dict[str, ast.FunctionDef]:
    """Hook of each of the engine's model classes, inherited ones included."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("sglang is not installed")
    classes: dict[str, ast.ClassDef] = {}
    models = Path(spec.submodule_search_locations[0]) / "srt" / "models"
    for file in sorted(models.glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node

    def hook(name: str, seen: tuple[str, ...] = ()) -> ast.FunctionDef | None:
        node = classes.get(name)
        if node is None or name in seen:
            return None
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == HOOK:
                return member
        for base in node.bases:
            found = hook(ast.unparse(base).split(".")[-1], (*seen, name))
            if found is not None:
                return found
        return None

    return {name: found for name in classes if (found := hook(name)) is not None}


def _convention_of(hook: ast.FunctionDef) -> Convention | None:
    text = ast.unparse(hook)
    if "layer_ids[0] == 1" in text:
        return Convention.VERBATIM_UNLESS_FIRST_IS_ONE
    if "max(layer_ids) == num_layers" in text:
        return Convention.PLUS_ONE_UNLESS_FINAL
    if "val + 1 for val in layer_ids" in text:
        return Convention.PLUS_ONE
    return None


@pytest.mark.parametrize("architecture", sorted(CONVENTIONS))
def test_table_agrees_with_the_engine(
    architecture: str, engine_hooks: dict[str, ast.FunctionDef]
) -> None:
    inner = {
        # These hand the ids to the language model they wrap.
        "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
        "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
        "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    }.get(architecture, architecture)
    assert _convention_of(engine_hooks[inner]) is CONVENTIONS[architecture]
    assert architecture in engine_hooks
