"""A tiny Llama with random weights, its own tokenizer and a chat template, made offline."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY_SIZE = 640
HIDDEN_SIZE = 64
LAYERS = 8
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog while the cat sleeps near the window.",
    "Please explain how a small engine works and list the parts that need care every year.",
    "Write a short letter to a friend about a walk in the mountains after the first snow.",
    "What is the difference between rain and fog, and why does it matter to a sailor?",
    "Numbers such as 12, 37 and 2048 appear in tables; words such as user and assistant do not.",
    "def add(first, second): return first + second  # the sum of two numbers",
    "She sells bread, cheese and apples at the market on Saturday morning before eight.",
    "To make tea, boil water, warm the pot, add leaves, wait four minutes and pour slowly.",
    "Summarise this paragraph in one sentence, then suggest a better title for the article.",
    "Imagine a harbour at night: lanterns swing, ropes creak, and an old captain hums quietly.",
    "Compare trains with buses under these headings: price, comfort, speed, and pollution.",
    "Translate every greeting politely; answer questions about grammar, spelling, vocabulary.",
    "Because plants need light, put the young tomatoes beside a bright kitchen door in spring.",
    "Could you draft an apology for missing our meeting yesterday afternoon without excuses?",
)


def make_tiny_target(directory: Path, seed: int = 0, layers: int = LAYERS) -> Path:
    """Write a Llama of random weights to ``directory`` unless it is already there.

    Returns
    -------
    Path
        ``directory``, with config, fp32 weights, tokenizer and chat template.
    """
    directory = Path(directory)
    if directory.exists():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        _tokenizer().save_pretrained(beside)
        _model(seed, layers).save_pretrained(beside)
        beside.chmod(0o755)
        beside.rename(directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return directory


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=VOCABULARY_SIZE,
        min_frequency=1,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def _model(seed: int, layers: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        # Wide enough that greedy text does not fall into one loop, narrow enough to be learnt.
        initializer_range=0.14,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype=torch.float32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def make_predictable(directory: Path) -> None:
    """Weaken the layers of a tiny target, so that the last token nearly decides the next one.

    Random layers make a text that no drafter can learn from a few samples.
    """
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.02
    save_file(tensors, path, metadata={"format": "pt"})
