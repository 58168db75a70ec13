"""The state of all ranks' loaders beside the model, in one ``torch.distributed.checkpoint``."""

from __future__ import annotations

import json
from typing import Any

import torch.distributed as distributed

from workbench.errors import ResumeError
from workbench.streaming.loader import StreamLoader

_KEY = "ranks"


class LoaderCheckpoint:
    """A ``StreamLoader`` as a part of what ``torch.distributed.checkpoint`` saves and loads.

    Every rank's checkpoint holds the states of all ranks, as one text, so that it can be loaded by any number of
    ranks and with any number of workers; a checkpoint that is loaded by the same numbers goes on in the same order::

        saved = {"model": model.state_dict(), "loader": LoaderCheckpoint(loader)}
        torch.distributed.checkpoint.save(saved, checkpoint_id=folder)      # every rank
        torch.distributed.checkpoint.load(saved, checkpoint_id=folder)      # before the first iter(loader)

    ``python -m workbench.streaming.checkpoint_example`` shows it with two ranks that are killed; its ``train`` is a
    training loop to copy from.

    Args:
        loader: The loader of this rank.
    """

    def __init__(self, loader: StreamLoader) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        """States of all ranks; every rank calls this at the same step."""
        own = json.dumps(self.loader.state_dict())
        if not (distributed.is_available() and distributed.is_initialized()):
            return {_KEY: json.dumps([own])}
        states: list[str | None] = [None] * distributed.get_world_size()
        distributed.all_gather_object(states, own)
        return {_KEY: json.dumps(states)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next ``iter(loader)`` go on from the checkpoint.

        Raises:
            ResumeError: It holds no states of loaders, they belong to another stream, or an iterator is in use.
        """
        if _KEY not in state_dict:
            raise ResumeError(
                f"{str(state_dict)[:80]} holds no states of loaders: load what LoaderCheckpoint.state_dict() gave."
            )
        self.loader.load_state_dict([json.loads(state) for state in json.loads(state_dict[_KEY])])
