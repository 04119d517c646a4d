"""Start ``sglang.launch_server`` on the CPU: ``python -m drafter_sglang_cpu.launch_server ARGS``.

The arguments are SGLang's own and are passed on unchanged. SGLang spawns its scheduler and its
detokenizer; a spawned process imports the program's main module first, so that the preparation
below is at module level: it reaches every process of the server before SGLang is imported.
"""

from __future__ import annotations

import runpy

from drafter_sglang_cpu import server_process

server_process.prepare()

if __name__ == "__main__":
    # __main__ stays this module, for the spawned processes to import.
    runpy.run_module("sglang.launch_server", run_name="__main__")
