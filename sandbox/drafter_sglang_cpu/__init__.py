"""Run the unmodified SGLang server on a CPU, with operators written in plain torch."""
