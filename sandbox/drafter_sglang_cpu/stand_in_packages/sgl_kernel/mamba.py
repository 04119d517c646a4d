"""Operators of state-space models: none of them is available on the CPU here."""

from __future__ import annotations

from .missing import MissingOperator

causal_conv1d_fn_cpu = MissingOperator("causal_conv1d_fn_cpu")
causal_conv1d_update_cpu = MissingOperator("causal_conv1d_update_cpu")
chunk_gated_delta_rule_cpu = MissingOperator("chunk_gated_delta_rule_cpu")
