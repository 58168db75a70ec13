"""Whole batches on the worker: the batches, order, random numbers, state and hooks of automatic batching."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from workbench.errors import SourceError
from workbench.loaders.batching import BatchIterator, can_batch_on_worker, whole_batches

WORKERS = (0, 2)


class Noisy(Dataset):
    """Row i, the worker's own random number, and how the row was fetched."""

    def __init__(self, rows=22):
        self.rows = rows
        self.shift = 0

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return torch.tensor([index + self.shift, torch.randint(10**6, ()).item()])


class AtOnce(Noisy):
    """Fetches whole batches; single rows are an error."""

    def __getitem__(self, index):
        raise AssertionError("fetched one by one")

    def __getitems__(self, indices):
        return [torch.tensor([index, len(indices)]) for index in indices]


class Growing(Sampler):
    """A batch sampler of its own kind, which reshuffles and draws batch lengths each time it is iterated."""

    def __iter__(self):
        order = torch.randperm(22).tolist()
        while order:
            size = int(torch.randint(1, 5, ()))
            yield tuple(order[:size])
            order = order[size:]


def epochs(loader, count=2):
    """Batches of some epochs and the random number that comes next, all from one seed."""
    torch.manual_seed(11)
    told = [[batch.tolist() for batch in loader] for _ in range(count)]
    return told, torch.rand(()).item()


def stack_and_mark(rows):
    return torch.stack(list(rows)) * 10


def generator():
    return torch.Generator().manual_seed(4)


MAP_STYLE = {
    "in order": lambda cls, **k: cls(Noisy(), batch_size=4, **k),
    "shuffled": lambda cls, **k: cls(Noisy(), batch_size=4, shuffle=True, **k),
    "shuffled, own generator": lambda cls, **k: cls(Noisy(), batch_size=4, shuffle=True, generator=generator(), **k),
    "drop_last": lambda cls, **k: cls(Noisy(), batch_size=4, shuffle=True, drop_last=True, **k),
    "collate_fn": lambda cls, **k: cls(Noisy(), batch_size=7, collate_fn=stack_and_mark, **k),
    "weighted": lambda cls, **k: cls(Noisy(), batch_size=4, sampler=WeightedRandomSampler(range(1, 23), 15), **k),
    "batch_sampler": lambda cls, **k: cls(Noisy(), batch_sampler=BatchSampler(RandomSampler(Noisy()), 5, True), **k),
    "own batch_sampler": lambda cls, **k: cls(Noisy(), batch_sampler=Growing(), **k),
    "fetched at once": lambda cls, **k: cls(AtOnce(), batch_size=4, shuffle=True, **k),
    "smaller than a batch": lambda cls, **k: cls(Noisy(3), batch_size=4, **k),
    "smaller than a batch, dropped": lambda cls, **k: cls(Noisy(3), batch_size=4, drop_last=True, **k),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("cls", [DataLoader, StatefulDataLoader])
def test_map_style_batches_order_and_random_numbers_are_the_same(cls, workers):
    for name, make in MAP_STYLE.items():
        if cls is StatefulDataLoader and workers and name not in ("shuffled", "own batch_sampler", "drop_last"):
            continue  # its workers fetch as DataLoader's do
        persistent = workers > 0 and "shuffled" in name
        knobs = {"num_workers": workers, "persistent_workers": persistent}
        loader = make(cls, **knobs)
        whole = whole_batches(make(cls, **knobs))
        if cls is StatefulDataLoader:  # its random sampler seeds itself when it is made
            for made in (loader, whole):
                if getattr(made.sampler, "generator", None) is not None:
                    made.sampler.generator.manual_seed(6)
        assert whole.batch_size is None and whole.batch_sampler is None
        assert epochs(whole) == epochs(loader), name
        if name != "own batch_sampler":
            assert len(whole) == len(loader)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 30), size=st.integers(1, 9), drop_last=st.booleans(), seed=st.integers(0, 99))
def test_any_length_and_size_gives_the_same_batches(rows, size, drop_last, seed):
    shuffled = RandomSampler(range(rows), generator=torch.Generator()) if rows else SequentialSampler(range(rows))

    def batches(wrap):
        if rows:
            shuffled.generator.manual_seed(seed)
        return [b.tolist() for b in wrap(DataLoader(range(rows), size, sampler=shuffled, drop_last=drop_last))]

    assert batches(whole_batches) == batches(lambda loader: loader)


def test_the_sampler_runs_once_and_in_this_process():
    calls = []

    class Counted(Sampler):
        def __iter__(self):
            calls.append(get_worker_info())
            return iter(range(22))

        def __len__(self):
            return 22

    loader = whole_batches(DataLoader(Noisy(), batch_size=4, sampler=Counted(), num_workers=2))
    assert len(list(loader)) == 6 and calls == [None]


def test_everything_else_is_the_loaders_own():
    loader = DataLoader(
        Noisy(), 4, num_workers=2, collate_fn=stack_and_mark, worker_init_fn=print, timeout=9, pin_memory=True,
        in_order=False, generator=generator(), multiprocessing_context="spawn", prefetch_factor=3,
    )  # fmt: skip
    whole = whole_batches(loader)
    kept = set(vars(loader)) - {"dataset", "sampler", "batch_sampler", "batch_size", "drop_last"}
    assert all(vars(whole)[name] is vars(loader)[name] for name in kept)
    assert loader.batch_size == 4 and type(loader.dataset) is Noisy
    assert whole.dataset.user_dataset is loader.dataset and whole.sampler.batch_sampler is loader.batch_sampler


def test_epochs_reach_the_distributed_sampler():
    def batches(wrap):
        sampler = DistributedSampler(Noisy(), num_replicas=3, rank=1, seed=2)
        loader = wrap(DataLoader(Noisy(), 3, sampler=sampler, num_workers=2, persistent_workers=True))
        told = []
        for epoch in (0, 1):
            loader.sampler.set_epoch(epoch)
            told.append([batch[:, 0].tolist() for batch in loader])
        assert loader.sampler.epoch == 1 and loader.sampler.num_replicas == 3
        return told

    whole, plain = batches(whole_batches), batches(lambda loader: loader)
    assert whole == plain and whole[0] != whole[1]


def test_epochs_reach_a_batch_sampler_and_a_dataset_that_listen():
    class Listening(Growing):
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

    class Told(Noisy):
        def set_epoch(self, epoch):
            self.shift = 100 * epoch

    loader = DataLoader(Told(), batch_sampler=Listening())
    whole = whole_batches(loader)
    whole.sampler.set_epoch(3)
    whole.dataset.set_epoch(2)
    assert loader.batch_sampler.epoch == 3 and next(iter(whole))[0, 0] >= 200
    with pytest.raises(AttributeError):
        _ = whole.sampler.no_such_attribute
    with pytest.raises(AttributeError):
        _ = whole.dataset.no_such_attribute


def shift_by_worker(worker):
    dataset = get_worker_info().dataset
    assert dataset.rows == 22
    dataset.shift = 1000 * (worker + 1)


@pytest.mark.parametrize("kind", [Noisy, AtOnce])
def test_the_datasets_wrapper_survives_pickling(kind):
    whole = whole_batches(DataLoader(kind(), batch_size=4, shuffle=True))
    copied = pickle.loads(pickle.dumps(whole))
    copied.dataset.shift = 5
    assert copied.dataset.user_dataset.shift == copied.dataset.shift == 5 and whole.dataset.shift == 0
    assert "shift" not in vars(copied.dataset) and len(list(copied)) == 6


def test_worker_init_fn_reads_and_sets_the_users_dataset():
    knobs = {"num_workers": 2, "worker_init_fn": shift_by_worker}
    loader = DataLoader(Noisy(), batch_size=4, **knobs)
    told = epochs(whole_batches(loader), count=1)
    assert told == epochs(loader, count=1)
    assert [batch[0][0] // 1000 for batch in told[0][0]] == [1, 2, 1, 2, 1, 2]


class Sharded(IterableDataset):
    """Numbers 0 to n - 1, each worker its own."""

    def __init__(self, n=23):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.n, step):
            yield torch.tensor(i)


class Sized(Sharded):
    def __len__(self):
        return self.n


class Unsharded(IterableDataset):
    def __iter__(self):
        yield from map(torch.tensor, range(23))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("cls", [DataLoader, StatefulDataLoader])
def test_streams_give_the_same_batches(cls, workers):
    for dataset in (Sharded(), Sized(), Unsharded(), Sharded(0)) if workers == 0 else (Sized(), Unsharded()):
        for drop_last in (False, True):
            persistent = workers > 0 and not drop_last
            loader = cls(dataset, 4, num_workers=workers, drop_last=drop_last, persistent_workers=persistent)
            whole = whole_batches(loader)
            assert whole.batch_size is None
            assert epochs(whole) == epochs(loader), (dataset, drop_last)


def test_a_sharded_stream_loses_and_repeats_nothing_and_drops_what_torch_drops():
    loader = DataLoader(Sharded(), 4, num_workers=3)
    assert sorted(i for batch in whole_batches(loader) for i in batch.tolist()) == list(range(23))
    dropping = whole_batches(DataLoader(Sharded(), 4, num_workers=3, drop_last=True))
    assert [len(batch) for batch in dropping] == [4] * 5  # 8, 8 and 7 samples a worker


def test_the_length_of_a_stream_is_counted_in_batches():
    assert len(whole_batches(DataLoader(Sized(), 4))) == len(DataLoader(Sized(), 4)) == 6
    assert len(whole_batches(DataLoader(Sized(), 4, drop_last=True))) == 5
    with pytest.raises(TypeError):
        len(whole_batches(DataLoader(Sharded(), 4)))


def test_an_endless_stream_is_cut_lazily():
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield taken[-1]

    batches = BatchIterator(endless(), 3, False)
    assert next(batches) == [0, 1, 2] and taken == [0, 1, 2]
    ended = BatchIterator(iter("ab"), 3, False)
    assert next(ended) == ["a", "b"]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(ended)


class StatefulRows(Noisy):
    """A map-style dataset that counts what it gave, as its state."""

    def __init__(self):
        super().__init__()
        self.given = 0

    def __getitem__(self, index):
        self.given += 1
        return torch.tensor([index, self.given])

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class StateOnDataset(Sharded):
    """A stream whose dataset knows where it is."""

    at = 0

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first + self.at * step, self.n, step):
            self.at += 1
            yield torch.tensor(i)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class OwnIterator(StateOnDataset):
    """A stream that is its own iterator."""

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        value = first + self.at * step
        if value >= self.n:
            raise StopIteration
        self.at += 1
        return torch.tensor(value)


class StateOnIterator(Sharded):
    """A stream whose iterator knows where it is."""

    def __iter__(self):
        return iter(OwnIterator(self.n))


STATEFUL = {
    "no state": lambda **k: StatefulDataLoader(Noisy(), 4, **k),
    "stateful rows": lambda **k: StatefulDataLoader(StatefulRows(), 4, **k),
    "shuffled": lambda **k: StatefulDataLoader(StatefulRows(), 4, shuffle=True, generator=generator(), **k),
    "distributed": lambda **k: StatefulDataLoader(
        StatefulRows(), 3, sampler=StatefulDistributedSampler(range(22), num_replicas=1, rank=0), **k
    ),
    "stream without state": lambda **k: StatefulDataLoader(Sharded(), 4, **k),
    "state on the dataset": lambda **k: StatefulDataLoader(StateOnDataset(), 4, **k),
    "own iterator": lambda **k: StatefulDataLoader(OwnIterator(), 4, **k),
    "state on the iterator": lambda **k: StatefulDataLoader(StateOnIterator(), 4, **k),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", STATEFUL)
def test_a_stateful_loader_resumes_as_it_does_with_automatic_batching(name, workers):
    def run(wrap, stop_after=2):
        loader = wrap(STATEFUL[name](num_workers=workers))
        running = iter(loader)
        seen = [next(running).tolist() for _ in range(stop_after)]
        state = loader.state_dict()
        resumed = wrap(STATEFUL[name](num_workers=workers))
        resumed.load_state_dict(state)
        rest = [batch.tolist() for batch in resumed]
        return seen, rest, [batch.tolist() for batch in resumed]

    def first_column(batches):
        return [[row[0] if isinstance(row, list) else row for row in batch] for batch in batches]

    whole, plain = run(whole_batches), run(lambda loader: loader)
    if name == "no state":  # its second column is noise
        whole, plain = map(first_column, whole), map(first_column, plain)
    assert tuple(whole) == tuple(plain)


def test_errors_of_the_dataset_come_through():
    class Broken(Noisy):
        def __getitem__(self, index):
            raise KeyError(f"row {index}")

    for workers in (0, 1):
        with pytest.raises(KeyError, match="row 0"):
            next(iter(whole_batches(DataLoader(Broken(), 4, num_workers=workers))))


def test_loaders_with_nothing_to_move_are_refused_with_a_way_out():
    class OwnLoop(DataLoader):
        def __init__(self):
            super().__init__(Noisy(), 4)
            self.running = super().__iter__()

    for loader in (DataLoader(Noisy(), batch_size=None), DataLoader(IterableWrapper(range(4)), 2), OwnLoop()):
        assert not can_batch_on_worker(loader)
        with pytest.raises(
            SourceError, match=r"batch_on_worker=True cannot be applied to this .* leave batch_on_worker"
        ):
            whole_batches(loader)
    assert can_batch_on_worker(DataLoader(Noisy(), 4))
