"""DevicePrefetcher: order of copies, events and hand-outs on a recorded accelerator; a pass-through on the CPU."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import Any

import pytest
import torch

from workbench.errors import ResumeError, SettingsError
from workbench.streaming.loader import StreamLoader
from workbench.streaming.prefetch import DevicePrefetcher, moved
from workbench.streaming.stream import ShardStream


class RecordedStreams:
    """Stands for ``torch.cuda``: notes what is done on which stream."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.active = "step"
        outer = self

        class Stream:
            def __init__(self, device: Any = None) -> None:
                self.name = "copies"

        class Event:
            def record(self, stream: Any) -> None:
                outer.log.append(("record", stream.name))

        self.Stream, self.Event = Stream, Event

    @contextlib.contextmanager
    def stream(self, stream: Any):
        self.active = stream.name
        yield
        self.active = "step"

    def current_stream(self, device: Any) -> Any:
        class Step:
            name = "step"

            def wait_event(step, event: Any) -> None:
                self.log.append(("wait", "step"))

        return Step()


class OnDevice(torch.Tensor):
    """A tensor that notes who is said to use it."""

    @property
    def device(self) -> torch.device:
        return torch.device("meta")


def recorded(loader: Any, **options: Any) -> tuple[DevicePrefetcher, RecordedStreams]:
    prefetcher = DevicePrefetcher(loader, "cpu", **options)
    streams = RecordedStreams()
    prefetcher.device, prefetcher._streams = torch.device("meta"), streams
    prefetcher._copy = lambda tensor: noted(tensor, streams)
    return prefetcher, streams


def noted(tensor: torch.Tensor, streams: RecordedStreams) -> torch.Tensor:
    streams.log.append(("copy", streams.active, int(tensor[0])))
    copied = tensor.clone().as_subclass(OnDevice)
    copied.record_stream = lambda stream: streams.log.append(("used by", stream.name, int(tensor[0])))
    return copied


def test_the_next_copy_is_queued_before_a_batch_is_handed_out_and_the_step_waits_on_the_device():
    prefetcher, streams = recorded([torch.tensor([number]) for number in range(3)])
    got = []
    for batch in prefetcher:
        got.append(int(batch[0]))
        streams.log.append(("step", int(batch[0])))
    assert got == [0, 1, 2]
    assert streams.log == [
        ("copy", "copies", 0),
        ("record", "copies"),
        ("copy", "copies", 1),
        ("record", "copies"),
        ("wait", "step"),
        ("used by", "step", 0),
        ("step", 0),
        ("copy", "copies", 2),
        ("record", "copies"),
        ("wait", "step"),
        ("used by", "step", 1),
        ("step", 1),
        ("wait", "step"),
        ("used by", "step", 2),
        ("step", 2),
    ]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_every_batch_comes_once_in_order_whatever_the_depth(depth, count):
    prefetcher, streams = recorded([torch.tensor([number]) for number in range(count)], depth=depth)
    most, held = 0, 0
    got = []
    for batch in prefetcher:
        got.append(int(batch[0]))
        held = sum(entry[0] == "copy" for entry in streams.log) - len(got)
        most = max(most, held)
    assert got == list(range(count)) and most == min(depth, max(count - 1, 0))


def test_the_state_is_that_of_the_batch_handed_out_not_of_those_copied_ahead():
    def make() -> StreamLoader:
        return StreamLoader(ShardStream([range(40)], window=8), batch_size=4)

    whole = [batch.tolist() for batch in make()]
    prefetcher, _ = recorded(make(), depth=3)
    batches = iter(prefetcher)
    before = [next(batches).tolist() for _ in range(4)]
    state = prefetcher.state_dict()
    resumed, _ = recorded(make(), depth=2)
    resumed.load_state_dict(state)
    assert before + [batch.tolist() for batch in resumed] == whole
    with pytest.raises(ResumeError, match="list keeps no state"):
        DevicePrefetcher([]).state_dict()


def test_an_error_comes_after_the_batches_before_it_and_the_state_is_theirs():
    class Failing:
        given = 0

        def __iter__(self):
            for self.given in (1, 2, 3):
                yield torch.tensor([self.given])
            raise OSError("the disk is gone")

        def state_dict(self) -> dict[str, int]:
            return {"given": self.given}

    prefetcher, _ = recorded(Failing(), depth=2)
    got = []
    with pytest.raises(OSError, match="the disk is gone"):
        got += (int(batch[0]) for batch in prefetcher)
    assert prefetcher.state_dict() == {"given": 3}
    batches, seen = iter(prefetcher), []
    with pytest.raises(OSError, match="the disk is gone"):
        while True:
            seen.append((int(next(batches)[0]), prefetcher.state_dict()["given"]))
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_a_pass_that_is_closed_early_lets_go_of_the_loader():
    ended = []

    def loader():
        try:
            yield from (torch.tensor([number]) for number in range(9))
        finally:
            ended.append(True)

    prefetcher, _ = recorded(loader(), depth=2)
    batches = iter(prefetcher)
    assert int(next(batches)[0]) == 0 and not ended
    prefetcher.loader = None
    batches.close()
    assert ended == [True]


def test_without_an_accelerator_batches_pass_through_and_it_says_so():
    batches = [{"x": torch.ones(2)}]
    prefetcher = DevicePrefetcher(batches, "cpu")
    assert next(iter(prefetcher)) is batches[0] and len(prefetcher) == 1
    assert "passed through" in prefetcher.describe()
    absent = "xpu" if torch.cuda.is_available() else "cuda"
    with pytest.raises(SettingsError, match=f"device='{absent}' is not there"):
        DevicePrefetcher(batches, absent)


@pytest.mark.parametrize("depth", [0, -1, True, 1.5])
def test_an_impossible_depth_is_refused(depth):
    with pytest.raises(SettingsError, match="depth="):
        DevicePrefetcher([], depth=depth)


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Record:
    pixels: torch.Tensor
    name: str


class Homemade:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.note = tensor, "kept"


class MovesItself:
    """Has a ``to`` that knows no ``non_blocking``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> MovesItself:
        return MovesItself(self.tensor.to(device))


class Length:
    """Has a ``to`` that is about something else."""

    def to(self, unit: str) -> float:
        raise AssertionError(f"nobody should convert to {unit}")


def test_objects_that_move_themselves_are_asked_to():
    """A PackedSequence refuses ``batch_sizes`` anywhere but on the CPU."""
    sequences = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    prefetcher = DevicePrefetcher([(sequences, MovesItself(torch.ones(1)), Length())], "cpu")
    prefetcher.device = torch.device("meta")
    packed, own, length = next(iter(prefetcher))
    assert packed.data.device.type == own.tensor.device.type == "meta"
    assert packed.batch_sizes.device.type == "cpu" and isinstance(length, Length)


def test_only_what_lies_on_the_device_is_marked_as_used():
    prefetcher, streams = recorded([])
    prefetcher._handed_out({"there": noted(torch.tensor([4]), streams), "here": torch.tensor([5])}, object(), None)
    assert [entry for entry in streams.log if entry[0] == "used by"] == [("used by", "step", 4)]


def test_nested_batches_keep_their_types_and_shared_tensors_stay_shared():
    shared = torch.zeros(2)
    batch = {
        "plain": shared,
        "again": [shared, "text", 3, None],
        "pair": Pair(torch.ones(1), (torch.ones(1),)),
        "record": Record(torch.ones(3), "a"),
        "user": collections.UserDict(x=torch.ones(1)),
        "ordered": collections.OrderedDict(x=torch.ones(1)),
        "own": Homemade(torch.ones(1)),
        "function": len,
    }
    calls = []
    result = moved(batch, lambda tensor: calls.append(1) or tensor + 1)
    assert len(calls) == 7
    assert result["plain"] is result["again"][0] and result["again"][1:] == ["text", 3, None]
    assert isinstance(result["pair"], Pair) and result["pair"].second[0].item() == 2
    assert isinstance(result["record"], Record) and result["record"].pixels[0].item() == 2
    assert isinstance(result["user"], collections.UserDict) and result["user"]["x"].item() == 2
    assert isinstance(result["ordered"], collections.OrderedDict)
    assert result["own"].tensor.item() == 2 and result["own"].note == "kept" and result["function"] is len
    assert torch.equal(batch["plain"], torch.zeros(2)) and batch["own"].tensor.item() == 1
