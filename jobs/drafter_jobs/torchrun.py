"""torchrun that ends with the job that started it, and whose processes end with it.

torchrun starts its processes in sessions of their own, where no signal to a process group
reaches them: left behind, they would go on writing checkpoints beside the next start.
"""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1
"""Source: Linux, prctl(2)."""


def end_with_parent() -> None:
    """Get SIGKILL when the process that started this one ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Run torchrun with the command line of this process."""
    end_with_parent()
    from torch.distributed.run import main as torchrun

    torchrun()


if __name__ == "__main__":
    main()
