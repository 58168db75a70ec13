"""DevicePrefetcher: copies the next batches to the device on a stream of their own, under the step's kernels."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from workbench.errors import ResumeError, SettingsError


class DevicePrefetcher:
    """Batches of a loader on the device, copied ahead of the step that uses them.

    The copy of a batch is queued on a stream of its own, from pinned memory and without waiting, before the batch
    ahead of it is handed out; the step's stream waits for it on the device, never the CPU. The memory of a batch is
    marked as used by the step's stream (``record_stream``), or the allocator could hand it to the next copy while
    kernels still read it.

    An error of the loader is raised where it belongs, after the batches that came before it. A loader that keeps state
    is asked for it once a batch, since it has moved on when the batch is handed out.

    Without an accelerator batches pass through untouched, and ``describe()`` says so.

    Args:
        loader: Any iterable of batches: tensors, or containers, dataclasses and other objects that hold them.
        device: Where batches go; None means the current accelerator, or nothing where there is none.
        depth: Batches that are copied ahead of the one handed out; each takes its size in device memory.

    Raises:
        SettingsError: ``depth`` is below 1, or ``device`` is not there.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str | None = None, *, depth: int = 1) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise SettingsError(f"depth={depth!r} copies nothing ahead: use 1 or more.")
        self.loader, self.depth = loader, depth
        self.device = _device(device)
        self._streams = None if self.device.type == "cpu" else _stream_module(self.device)
        self._state: Any = None
        self._unpinned = 0

    def __iter__(self) -> Iterator[Any]:
        self._state, self._unpinned = None, 0
        return iter(self.loader) if self.device.type == "cpu" else self._ahead()

    def __len__(self) -> int:
        return len(self.loader)

    def describe(self) -> str:
        """One sentence: what is done with a batch here."""
        if self.device.type == "cpu":
            return "No accelerator: batches are passed through as they come, nothing is copied."
        if self._streams is None:
            return f"Batches are copied to {self.device} without waiting; it has no streams of its own to overlap them."
        unpinned = (
            f" {self._unpinned:,} tensors came unpinned and were pinned in this process: set pin_memory=True."
            if self._unpinned
            else ""
        )
        return f"Batches are copied to {self.device} on a stream of their own, {self.depth} ahead.{unpinned}"

    def set_epoch(self, epoch: int) -> None:
        """Pass ``epoch`` on to the loader's dataset."""
        self.loader.dataset.set_epoch(epoch)

    def state_dict(self) -> Any:
        """The loader's state after the batch handed out last, not after those copied ahead.

        Raises:
            ResumeError: The loader keeps no state.
        """
        if not hasattr(self.loader, "state_dict"):
            raise ResumeError(f"{type(self.loader).__name__} keeps no state: use a StreamLoader or StatefulDataLoader.")
        return self.loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Any) -> None:
        """Let the loader's next pass go on from ``state``."""
        self.loader.load_state_dict(state)
        self._state = None

    def _ahead(self) -> Iterator[Any]:
        copies = self._streams.Stream(self.device) if self._streams is not None else None
        stateful = hasattr(self.loader, "state_dict")
        queued: deque[tuple[Any, Any, Any]] = deque()
        batches, failure = iter(self.loader), None
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
            state = self.loader.state_dict() if stateful else None
            queued.append((*self._copied(batch, copies), state))
            if len(queued) > self.depth:
                yield self._handed_out(*queued.popleft())
        while queued:
            yield self._handed_out(*queued.popleft())
        if failure is not None:
            raise failure
        self._state = None  # the loader itself has seen the end of the epoch, and its state says so

    def _copied(self, batch: Any, copies: Any) -> tuple[Any, Any]:
        """The batch on the device, and the event after which it is there (None without streams)."""
        if copies is None:
            return moved(batch, lambda tensor: tensor.to(self.device, non_blocking=True), self._copy_itself), None
        with self._streams.stream(copies):
            there = moved(batch, self._copy, self._copy_itself)
            event = self._streams.Event()
            event.record(copies)
        return there, event

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            self._unpinned += 1
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _copy_itself(self, node: Any) -> Any:
        """What an object with ``to`` makes of itself: a PackedSequence must keep its ``batch_sizes`` on the CPU."""
        if self._streams is not None and hasattr(node, "pin_memory"):
            node = node.pin_memory()
        try:
            return node.to(self.device, non_blocking=True)
        except TypeError:  # its ``to`` knows no such argument
            return node.to(self.device)

    def _handed_out(self, batch: Any, event: Any, state: Any) -> Any:
        if event is not None:
            step = self._streams.current_stream(self.device)
            step.wait_event(event)
            moved(batch, lambda tensor: self._used_by(tensor, step))
        self._state = state
        return batch

    def _used_by(self, tensor: torch.Tensor, stream: Any) -> torch.Tensor:
        if tensor.device.type == self.device.type:
            tensor.record_stream(stream)
        return tensor


Move = Callable[[torch.Tensor], torch.Tensor]


def moved(batch: Any, move: Move, itself: Callable[[Any], Any] | None = None) -> Any:
    """A batch of the same structure with ``move`` applied to every tensor; one that occurs twice is moved once.

    Mappings, lists, tuples (named ones too), dataclasses and other objects that hold tensors are rebuilt; everything
    else stays as it is.

    Args:
        batch: The batch.
        move: What becomes of a tensor.
        itself: What becomes of an object with tensors and a ``to`` of its own that is no mapping; None rebuilds it too.
    """
    return _moved(batch, move, itself, {})


def _moved(node: Any, move: Move, itself: Callable[[Any], Any] | None, done: dict[int, tuple[Any, Any]]) -> Any:
    if id(node) in done:
        return done[id(node)][1]

    def inside(value: Any) -> Any:
        return _moved(value, move, itself, done)

    if isinstance(node, torch.Tensor):
        result = move(node)
    elif isinstance(node, Mapping):
        result = _like_mapping(node, {key: inside(value) for key, value in node.items()})
    elif itself is not None and callable(getattr(node, "to", None)) and _may_hold_tensors(node):
        result = itself(node)
    elif isinstance(node, tuple) and hasattr(node, "_fields"):
        result = type(node)(*(inside(value) for value in node))
    elif isinstance(node, list | tuple):
        result = type(node)(inside(value) for value in node)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {f.name: inside(getattr(node, f.name)) for f in dataclasses.fields(node) if f.init}
        result = dataclasses.replace(node, **fields)
    elif _may_hold_tensors(node):
        result = object.__new__(type(node))
        result.__dict__.update({name: inside(value) for name, value in node.__dict__.items()})
    else:
        return node
    done[id(node)] = (node, result)  # the node is kept, or its id could be given to another
    return result


def _may_hold_tensors(node: Any) -> bool:
    if isinstance(node, type) or callable(node):
        return False
    held = node if isinstance(node, tuple) else getattr(node, "__dict__", {}).values()
    return any(isinstance(value, torch.Tensor | Mapping | list | tuple) for value in held)


def _like_mapping(node: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if type(node) is dict:
        return values
    copied = node.copy() if hasattr(node, "copy") else dict(node)
    copied.update(values)
    return copied


def _device(device: torch.device | str | None) -> torch.device:
    if device is not None:
        wanted = torch.device(device)
        there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if wanted.type not in ("cpu", "meta") and (there is None or there.type != wanted.type):
            raise SettingsError(
                f"device={str(device)!r} is not there ({there or 'no accelerator'}): use device=None for what there is."
            )
        return wanted
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_accelerator().type, torch.accelerator.current_device_index())


def _stream_module(device: torch.device) -> Any:
    """The torch module with ``Stream``, ``Event``, ``stream`` and ``current_stream`` for a device; None without."""
    module = torch.get_device_module(device)
    return module if all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream")) else None
