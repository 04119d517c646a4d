"""The CPU path of speculators' trainer, which knows accelerators only.

Replaces the five places where speculators 0.9.0 asks for an accelerator. Nothing of this is
imported when a GPU trains.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def install() -> None:
    """Make ``speculators.train`` run on the CPU, with gloo between several processes."""
    from speculators.train import checkpointer, cli, distributed, trainer

    def set_up_gloo() -> None:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if world_size == 1:
            return
        dist.init_process_group("gloo")
        distributed._is_distributed = True
        distributed._local_rank = int(os.environ["LOCAL_RANK"])
        distributed._rank = dist.get_rank()
        distributed._world_size = dist.get_world_size()
        distributed._init_sp_process_groups(dist.get_rank(), world_size, 1)

    cli.maybe_setup_distributed = set_up_gloo
    trainer.get_local_rank = lambda: "cpu"
    checkpointer.get_current_device = lambda: "cpu"
    torch.accelerator.synchronize = lambda *_: None


def settle(trainer: object) -> None:
    """Point autocast at the CPU; the trainer falls back to CUDA where it finds no accelerator."""
    trainer.device_type = "cpu"  # type: ignore[attr-defined]
