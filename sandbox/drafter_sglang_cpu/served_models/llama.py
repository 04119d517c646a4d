"""SGLang's own Llama and its EAGLE-3 drafter, under the name its registry looks for."""

from __future__ import annotations

from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

EntryClass = [LlamaForCausalLM, LlamaForCausalLMEagle3]
