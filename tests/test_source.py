"""LoaderSource: one behaviour suite over every kind of source, then what is particular to each."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from workbench.errors import SourceError
from workbench.loaders import shipping
from workbench.loaders.settings import LoaderSettings
from workbench.loaders.source import LoaderSource
from workbench.tuning.space import SearchSpace

ROWS = 23
KNOB_NAMES = {
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "multiprocessing_context",
    "in_order",
}
BATCHING_NAMES = {"dataset", "sampler", "batch_sampler", "batch_size", "drop_last"}  # change under batch_on_worker


class Rows(Dataset):
    """Row i is (i, i squared)."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.tensor([index, index * index])


class Stream(IterableDataset):
    """The same rows, shared out among workers."""

    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id if info else 0, ROWS, info.num_workers if info else 1):
            yield torch.tensor([index, index * index])


class Uneven:
    """A batch sampler of batches of 1, 2, 3 ... rows."""

    def __iter__(self):
        start = 0
        for size in itertools.count(1):
            if start + size > ROWS:
                return
            yield list(range(start, start + size))
            start += size

    def __len__(self):
        return 6


class Named(DataLoader):
    """A subclass whose constructor takes something else, and changes what it is given."""

    def __init__(self, rows, title, **kwargs):
        self.title = title
        super().__init__(rows, collate_fn=functools.partial(add, kwargs.pop("plus")), **kwargs)

    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 2


class Endless(DataLoader):
    """The kind that starts its iterator in the constructor, so that workers outlive epochs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Again:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


def add(number, rows):
    return torch.stack(rows) + number


def as_list(rows):
    return list(rows)


def seed_worker(worker):
    torch.manual_seed(worker)


def seeded():
    return torch.Generator().manual_seed(3)


def make(num_workers=0, prefetch_factor=None, pin_memory=False, persistent_workers=False, **kw):
    return DataLoader(
        Rows(),
        batch_size=4,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        **kw,
    )


def make_strict(num_workers, prefetch_factor, persistent_workers, pin_memory, multiprocessing_context):
    return make(
        num_workers, prefetch_factor, pin_memory, persistent_workers, multiprocessing_context=multiprocessing_context
    )


def make_few(num_workers=0):
    return DataLoader(Rows(), batch_size=4, num_workers=num_workers)


def make_none():
    return DataLoader(Rows(), batch_size=4)


class Maker:
    def __call__(self, *, num_workers=1, prefetch_factor=7, persistent_workers=True):
        return make(num_workers, prefetch_factor, False, persistent_workers)

    def method(self, num_workers=0):
        return make_few(num_workers)

    @classmethod
    def of_class(cls, num_workers=0, **kw):
        return make(num_workers, **kw)


def weighted():
    return WeightedRandomSampler(torch.arange(1.0, ROWS + 1), 12, generator=seeded())


def distributed():
    return DistributedSampler(Rows(), num_replicas=3, rank=1, seed=5)


def tuned(num_workers=1, **knobs):
    if num_workers == 0:
        return DataLoader(Rows(), 4)
    theirs = {"prefetch_factor": 5, "persistent_workers": True, "multiprocessing_context": "fork"}
    return DataLoader(Rows(), 4, num_workers=num_workers, timeout=60, **theirs | knobs)


LOADERS = {
    "plain": lambda **k: DataLoader(Rows(), batch_size=4, **k),
    "shuffled": lambda **k: DataLoader(Rows(), batch_size=4, shuffle=True, generator=seeded(), **k),
    "drop_last": lambda **k: DataLoader(Rows(), batch_size=4, drop_last=True, collate_fn=as_list, **k),
    "sampler": lambda **k: DataLoader(Rows(), batch_size=5, sampler=weighted(), worker_init_fn=seed_worker, **k),
    "distributed": lambda **k: DataLoader(Rows(), batch_size=3, sampler=distributed(), **k),
    "batch_sampler": lambda **k: DataLoader(Rows(), batch_sampler=Uneven(), **k),
    "no batching": lambda **k: DataLoader(Rows(), batch_size=None, **k),
    "no batching, sampler": lambda **k: DataLoader(Rows(), batch_size=None, sampler=[4, 2, 0], **k),
    "stream": lambda **k: DataLoader(Stream(), batch_size=4, **k),
    "stream, drop_last": lambda **k: DataLoader(Stream(), batch_size=4, drop_last=True, **k),
    "stream, no batching": lambda **k: DataLoader(Stream(), batch_size=None, **k),
    "stateful": lambda **k: StatefulDataLoader(
        Rows(), batch_size=4, shuffle=True, generator=seeded(), snapshot_every_n_steps=9, **k
    ),
    "stateful stream": lambda **k: StatefulDataLoader(Stream(), batch_size=4, snapshot_every_n_steps=3, **k),
    "tuned": tuned,
    "subclass": lambda **k: Named(Rows(), "rows", plus=10, batch_size=4, **k),
    "live iterator": lambda **k: Endless(Rows(), batch_size=4, shuffle=True, generator=seeded(), **k),
}
FACTORIES = {
    "function with **kw": make,
    "function without defaults": make_strict,
    "function with one knob": make_few,
    "function with no knob": make_none,
    "lambda": lambda num_workers=0: make_few(num_workers),
    "partial": functools.partial(make, pin_memory=False),
    "object": Maker(),
    "method": Maker().method,
    "class method": Maker.of_class,
    "import path": f"{__name__}:make",
    "import path to a method": f"{__name__}:Maker.of_class",
    "file": f"{__file__}:make_few",
}
EVERY_KIND = {**LOADERS, **{name: (lambda f: lambda: f)(factory) for name, factory in FACTORIES.items()}}
SETTINGS = [
    LoaderSettings(0),
    LoaderSettings(2, 3, persistent_workers=True),
    LoaderSettings(2, 3, batch_on_worker=True),
]


def plain(batch):
    """A batch as nested lists, to compare."""
    return [plain(part) for part in batch] if isinstance(batch, list) else batch.tolist()


def batches(loader):
    torch.manual_seed(0)
    return [plain(batch) for batch in loader]


def expected(name, num_workers=None):
    """What the user's own loader gives, constructed with so many workers by PyTorch itself."""
    return expected_once(name if name in LOADERS else "plain", num_workers)


@functools.cache
def expected_once(name, num_workers):
    return batches(LOADERS[name](**({} if num_workers is None else {"num_workers": num_workers})))


def without_order(found):
    """All rows, sorted."""
    return sorted(row for batch in found for row in batch)


@pytest.fixture(params=EVERY_KIND)
def kind(request):
    return request.param


@pytest.mark.parametrize("settings", SETTINGS, ids=["no workers", "workers", "whole batches"])
def test_the_same_batches_come_out_under_any_settings(kind, settings):
    source = LoaderSource.of(EVERY_KIND[kind]())
    built = source.build(settings)
    knobs = (built.num_workers, built.prefetch_factor, built.persistent_workers, built.pin_memory)
    assert knobs == (settings.num_workers, settings.prefetch_factor, settings.persistent_workers, False)
    found, native = batches(built), expected(kind, settings.num_workers)
    if kind == "live iterator":  # the generator they share has moved on since the first of them was constructed
        found, native = without_order(found), without_order(native)
    assert found == native


def test_building_draws_no_random_number_and_leaves_the_original_alone(kind):
    handed_over = EVERY_KIND[kind]()
    before = dict(vars(handed_over)) if kind in LOADERS else {}
    generator = before.get("generator")
    drawn = None if generator is None else generator.get_state()
    source = LoaderSource.of(handed_over)
    state = torch.get_rng_state()
    for settings in SETTINGS:
        source.build(settings)
    assert torch.equal(torch.get_rng_state(), state)
    if kind != "live iterator":  # its constructor starts an iterator, which draws from the generator
        assert generator is None or torch.equal(generator.get_state(), drawn)
    assert kind not in LOADERS or vars(handed_over) == before


def test_shipped_it_gives_the_same_batches_and_is_the_same_loader(kind):
    source = LoaderSource.of(EVERY_KIND[kind]())
    file = io.BytesIO()
    shipping.ship(source, None, file)
    file.seek(0)
    there, _ = shipping.load(file)
    there.resolve()
    assert (there.name, there.kind, there.fingerprint()) == (source.name, source.kind, source.fingerprint())
    found, native = batches(there.build(LoaderSettings(0))), expected(kind, 0)
    assert found == native or (kind == "live iterator" and without_order(found) == without_order(native))


def test_it_describes_itself_in_one_line(kind):
    source = LoaderSource.of(EVERY_KIND[kind]())
    assert source.name and "\n" not in source.describe() and len(source.describe()) > 10
    assert source.kind == ("loader" if kind in LOADERS else "factory")
    assert LoaderSource.of(source) is source
    assert source.accepts("num_workers") is True
    assert source.accepts("no_such_knob") is False


@pytest.mark.parametrize("name", [n for n in LOADERS if n != "live iterator"])
def test_nothing_but_the_knobs_changes(name):
    loader = LOADERS[name]()
    loader.note = object()
    for settings in SETTINGS:
        built = LoaderSource.of(loader).build(settings)
        assert type(built) is type(loader) and built is not loader
        changed = {k for k, v in vars(built).items() if k not in vars(loader) or v is not vars(loader)[k]}
        changed = {k.removeprefix("_DataLoader__") for k in changed}
        allowed = KNOB_NAMES | (BATCHING_NAMES if settings.batch_on_worker else set())
        allowed |= {"timeout"} if settings.num_workers == 0 else set()
        assert changed <= allowed
        assert vars(built).keys() == vars(loader).keys()
        assert built.note is loader.note and built.collate_fn is loader.collate_fn


def test_none_keeps_the_loaders_own_start_method_and_a_name_replaces_it():
    source = LoaderSource.of(LOADERS["tuned"]())
    assert source.current == LoaderSettings(1, 5, persistent_workers=True, multiprocessing_context="fork")
    assert source.build(LoaderSettings(2)).multiprocessing_context.get_start_method() == "fork"
    spawned = source.build(LoaderSettings(2, multiprocessing_context="spawn"))
    assert spawned.multiprocessing_context.get_start_method() == "spawn"
    assert source.build(LoaderSettings(0)).multiprocessing_context is None
    assert source.build(LoaderSettings(0)).timeout == 0 and source.build(LoaderSettings(1)).timeout == 60


def test_in_order_and_pinning_reach_the_loader():
    source = LoaderSource.of(DataLoader(Rows(), pin_memory_device="cuda"))
    built = source.build(LoaderSettings(2, in_order=False, pin_memory=True))
    assert (built.in_order, built.pin_memory, built.pin_memory_device) == (False, True, "")
    assert source.build(LoaderSettings(2)).in_order is True


def test_a_running_loader_is_neither_consumed_nor_restarted():
    loader = StatefulDataLoader(Rows(), batch_size=4, num_workers=1, persistent_workers=True)
    running = iter(loader)
    first = next(running)
    built = LoaderSource.of(loader).build(LoaderSettings(0))
    assert [plain(b) for b in built] == expected("plain")
    assert loader._iterator is running and built._iterator is not running
    assert [plain(first)] + [plain(b) for b in running] == expected("plain")
    running._shutdown_workers()


def test_a_stateful_loader_stays_stateful_after_the_rebuild():
    for settings in (LoaderSettings(0), LoaderSettings(2)):
        source = LoaderSource.of(StatefulDataLoader(Rows(), batch_size=4, snapshot_every_n_steps=2))
        built = source.build(settings)
        running = iter(built)
        seen = [plain(next(running)) for _ in range(3)]
        state = built.state_dict()
        again = source.build(settings)
        again.load_state_dict(state)
        assert seen + [plain(b) for b in again] == expected("plain")


def test_a_loaded_state_does_not_leak_into_measurements():
    loader = StatefulDataLoader(Rows(), batch_size=4)
    running = iter(loader)
    next(running)
    resumed = StatefulDataLoader(Rows(), batch_size=4)
    resumed.load_state_dict(loader.state_dict())
    built = LoaderSource.of(resumed).build(LoaderSettings(0))
    assert [plain(b) for b in built] == expected("plain")
    assert resumed.next_iter_state is not None


def test_batch_size_changes_where_the_loader_has_one():
    shuffled = DataLoader(Rows(), batch_size=4, shuffle=True, generator=seeded(), drop_last=True)
    source = LoaderSource.of(shuffled)
    built = source.build(LoaderSettings(0, batch_size=10))
    assert source.accepts("batch_size") and (built.batch_size, len(built)) == (10, 2)
    assert built.sampler is shuffled.sampler and [len(b) for b in built] == [10, 10]
    assert [len(b) for b in source.build(LoaderSettings(2, batch_size=5, batch_on_worker=True))] == [5] * 4
    assert [len(b) for b in LoaderSource.of(LOADERS["stream"]()).build(LoaderSettings(0, batch_size=10))] == [10, 10, 3]
    stateful = LoaderSource.of(LOADERS["stateful"]()).build(LoaderSettings(0, batch_size=10))
    assert type(stateful.batch_sampler) is type(LOADERS["stateful"]().batch_sampler) and len(stateful) == 3
    endless = LoaderSource.of(LOADERS["live iterator"]())
    assert endless.accepts("batch_size") and len(list(endless.build(LoaderSettings(0, batch_size=10)))) == 3


@pytest.mark.parametrize("name", ["batch_sampler", "no batching", "stream, no batching"])
def test_batch_size_is_refused_where_something_else_forms_the_batches(name):
    source = LoaderSource.of(LOADERS[name]())
    assert not source.accepts("batch_size")
    with pytest.raises(SourceError, match=r"batch_size=8 cannot be set on this DataLoader: its .* factory that takes"):
        source.build(LoaderSettings(0, batch_size=8))


def test_a_replaced_batch_sampler_is_not_overruled():
    loader = DataLoader(Rows(), batch_size=4)
    object.__setattr__(loader, "batch_sampler", Again(loader.batch_sampler))
    with pytest.raises(SourceError, match="batch_sampler was replaced by a Again"):
        LoaderSource.of(loader).build(LoaderSettings(0, batch_size=8))


def test_a_subclass_that_keeps_live_parts_and_cannot_be_repeated_says_so():
    class Stubborn(DataLoader):
        def __init__(self, secret):
            super().__init__(Rows(), batch_size=secret)
            self.inner = DataLoader(Rows())

    with pytest.raises(SourceError, match=r"Stubborn keeps live parts \(inner\) and its constructor .* 'secret'"):
        LoaderSource.of(Stubborn(4)).build(LoaderSettings(1))

    class Careless(DataLoader):
        def __init__(self, dataset, **kwargs):
            super().__init__(
                Rows(), **{**kwargs, "num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
            )
            self.inner = DataLoader(Rows())

    with pytest.raises(
        SourceError, match=r"Careless, constructed again, differs in dataset, num_workers, prefetch_factor"
    ):
        LoaderSource.of(Careless(None)).build(LoaderSettings(1))


def test_a_factory_is_only_called_with_combinations_that_dataloader_takes():
    calls = []

    def record(num_workers=0, prefetch_factor=None, pin_memory=False, persistent_workers=False, **kw):
        calls.append(
            dict(
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                pin_memory=pin_memory,
                persistent_workers=persistent_workers,
                **kw,
            )
        )
        return make(**calls[-1])

    source = LoaderSource.of(record)
    product = itertools.product(
        [0, 1], [None, 2], [False], [False, True], [False, True], [None, "spawn"], [True, False]
    )
    for values in product:
        source.build(LoaderSettings(*values))
    for call in calls:
        with_workers = call["num_workers"] > 0
        assert with_workers or (call["prefetch_factor"], call["persistent_workers"]) == (None, False)
        assert with_workers or not call.keys() & {"multiprocessing_context", "in_order"}
        assert call.get("multiprocessing_context", "spawn") == "spawn" and "batch_on_worker" not in call
        assert call["prefetch_factor"] != 0


def test_a_factorys_own_defaults_cannot_meet_a_number_of_workers_they_do_not_go_with():
    source = LoaderSource.of(Maker())
    assert source.current == LoaderSettings(1, 7, persistent_workers=True)
    assert source.build(LoaderSettings(0)).prefetch_factor is None


def test_a_factory_gets_only_what_it_names_and_the_rest_is_set_on_its_loader():
    for factory in (make_few, make_none):
        source = LoaderSource.of(factory)
        assert not source.accepts("layout") and not source.accepts("non_blocking")
        assert all(source.accepts(knob) for knob in ("num_workers", "pin_memory", "batch_on_worker", "batch_size"))
        built = source.build(LoaderSettings(2, 6, persistent_workers=True, in_order=False, batch_size=5))
        assert (built.num_workers, built.prefetch_factor, built.persistent_workers) == (2, 6, True)
        assert (built.in_order, built.batch_size) == (False, 5)
    assert LoaderSource.of(make_none).current is None
    assert LoaderSource.of(make_few).current == LoaderSettings(0)


HARD_CODED = LoaderSettings(1, 5, persistent_workers=True, multiprocessing_context="fork")


@pytest.mark.parametrize(
    ("factory", "current"),
    [
        (lambda: tuned(), HARD_CODED),
        (lambda num_workers=1: tuned(num_workers), HARD_CODED),
        (lambda num_workers=0: tuned(num_workers), LoaderSettings(0)),
        (lambda num_workers=1, prefetch_factor=5: tuned(num_workers, prefetch_factor=prefetch_factor), HARD_CODED),
        (lambda num_workers=0, layout="tar": make_few(num_workers), LoaderSettings(0, layout="tar")),
        (lambda num_workers=3, **kw: make(num_workers, **kw), LoaderSettings(3)),
        (lambda num_workers, **kw: make(num_workers, **kw), None),
        (lambda num_workers=2: [], LoaderSettings(2)),
        (lambda: [], None),
    ],
)
def test_what_a_factory_hard_codes_is_seen_when_it_is_called_and_stays_where_nobody_turns_it(factory, current):
    for source in (LoaderSource.of(factory), built_before(factory)):
        found = source.current_when_called()
        assert found == current
    if source.seen and source.seen.settings is not None:
        again = LoaderSource.of(source.build(current or LoaderSettings())).current
        assert again == (current or LoaderSettings()).replaced(layout=None)


def built_before(factory):
    source = LoaderSource.of(factory)
    with contextlib.suppress(SourceError):
        source.build(LoaderSettings(0))
    return source


def test_a_factory_is_not_called_again_where_its_defaults_were_said_already():
    calls = []

    def factory(num_workers=0, pin_memory=False):
        calls.append(num_workers)
        return make_few(num_workers)

    source = LoaderSource.of(factory)
    source.build(LoaderSettings(0))
    assert source.current_when_called() == LoaderSettings(0) and calls == [0]
    source.build(LoaderSettings(2))
    assert source.current_when_called() == LoaderSettings(0) and calls == [0, 2, 0]


def test_what_a_settings_says_is_what_a_factorys_loader_has():
    source = LoaderSource.of(lambda: tuned())
    plain = source.build(LoaderSettings(2))
    assert (plain.prefetch_factor, plain.persistent_workers) == (2, False)
    assert plain.multiprocessing_context.get_start_method() == "fork" and plain.timeout == 60  # None keeps
    zero = source.build(LoaderSettings(0))
    assert (zero.num_workers, zero.prefetch_factor, zero.timeout) == (0, None, 0)


def test_a_factory_that_names_a_knob_decides_it():
    source = LoaderSource.of(lambda num_workers=0, pin_memory=False: make(min(num_workers, 1), None, False))
    built = source.build(LoaderSettings(4, 3, pin_memory=True))
    assert (built.num_workers, built.prefetch_factor, built.pin_memory) == (1, 3, False)


def test_what_was_returned_decides_which_knobs_can_be_set():
    sampled = LoaderSource.of(lambda: LOADERS["batch_sampler"]())
    assert sampled.accepts("batch_size")  # believed, until it was called
    sampled.build(LoaderSettings(0))
    assert not sampled.accepts("batch_size") and sampled.accepts("batch_on_worker")
    listing = LoaderSource.of(lambda num_workers=0: [])
    listing.build(LoaderSettings(0))
    assert [knob for knob in KNOB_NAMES if listing.accepts(knob)] == ["num_workers"]
    told = LoaderSource.of(lambda num_workers=0: []).as_seen(listing.seen.shown, listing.seen.fixed)
    assert not told.accepts("pin_memory") and told.accepts("num_workers")
    assert re.search(
        "returned a list, not a DataLoader, and names no parameter pin_memory", told.why_fixed("pin_memory")
    )


def test_a_source_told_what_will_be_turned_refuses_at_its_first_call():
    source = LoaderSource.of(lambda num_workers=0: []).to_turn(["num_workers", "prefetch_factor"])
    with pytest.raises(SourceError, match=r"prefetch_factor cannot be applied: .* returned a list, not a DataLoader"):
        source.build(LoaderSettings(0))
    assert LoaderSource.of(make_none).to_turn(["num_workers"]).build(LoaderSettings(1)).num_workers == 1


def test_a_factory_that_names_batch_on_worker_or_batch_size_decides_itself():
    def both(num_workers=0, batch_on_worker=False, batch_size=3):
        return [batch_on_worker, batch_size, num_workers]

    source = LoaderSource.of(both)
    assert source.build(LoaderSettings(2, batch_on_worker=True)) == [True, 3, 2]
    assert source.build(LoaderSettings(0, batch_size=8)) == [False, 8, 0]
    assert source.accepts("batch_size") and source.accepts("batch_on_worker")
    assert source.current == LoaderSettings(0)
    with pytest.raises(SourceError, match="asks for batch_size and the settings have none"):
        LoaderSource.of(lambda num_workers, batch_size: []).build(LoaderSettings(0))


def test_a_factory_may_return_any_iterable_but_not_nothing():
    assert list(LoaderSource.of(lambda num_workers=0: iter("ab")).build(LoaderSettings(2))) == ["a", "b"]
    with pytest.raises(SourceError, match=r"returned None, no iterable of batches; let it return the loader"):
        LoaderSource.of(lambda num_workers=0: None).build(LoaderSettings(0))
    with pytest.raises(SourceError, match=r"batch_on_worker=True cannot be applied: .* returned a list, not a Data"):
        LoaderSource.of(lambda num_workers=0: []).build(LoaderSettings(0, batch_on_worker=True))
    with pytest.raises(
        SourceError, match=r"num_workers=2 cannot be applied.* let it return a DataLoader, or take that"
    ):
        LoaderSource.of(lambda: []).build(LoaderSettings(2))
    with pytest.raises(SourceError, match=r"returned a Dataset \(Rows\), not a DataLoader; let it return DataLoader\("):
        LoaderSource.of(lambda num_workers=0: Rows()).build(LoaderSettings(0))
    with pytest.raises(SourceError, match=r"returned an IterableDataset \(Stream\), not a DataLoader"):
        LoaderSource.of(lambda: Stream()).build(LoaderSettings(1))


def test_a_factorys_own_error_comes_through_as_it_is():
    def broken(num_workers=0):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        LoaderSource.of(broken).build(LoaderSettings(0))


class Wrapper:
    def __init__(self):
        self.loader = make()

    def __iter__(self):
        return iter(self.loader)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (None, r"None cannot be rebuilt .* hand over a DataLoader"),
        (17, "17 cannot be rebuilt"),
        ([1, 2], r"a list cannot be rebuilt"),
        (Rows(), r"a Dataset \(Rows\) is not a DataLoader; hand over DataLoader\("),
        (Rows, r"the Dataset class Rows is not a DataLoader; hand over DataLoader\("),
        (f"{__file__}:Rows", r"is the Dataset class Rows, not a DataLoader; .* for instance '.*:make_loader'"),
        (Wrapper(), r"hand over its DataLoader \(\.loader\)"),
        (lambda dataset, num_workers=0: None, r"also asks for dataset; give that a default, or .* functools\.partial"),
        (DataLoader, r"torch\.utils\.data\.dataloader\.DataLoader cannot be called .* also asks for dataset"),
        ("train.py", r"'train\.py' does not name a loader; write .*; which callable in train\.py\?"),
        ("no_such_module:make", r"there is no module 'no_such_module'"),
        ("os.no_such_part:make", r"there is no module 'os\.no_such_part'"),
        ("no/such/file.py:make", r"there is no file .*no/such/file\.py; give its path as seen from"),
        (f"{__file__}:maek", r"defines no 'maek'; did you mean 'make'"),
        (f"{__name__}:maker_of_nothing", "defines no 'maker_of_nothing'"),
        ("sample:nothing", r"'sample:nothing' is no sample; the samples are sample:photos"),
        ("a b:make", "'a b' is not a module's name"),
        ("", "'' does not name a loader"),
    ],
)
def test_what_is_no_loader_is_refused_at_once_with_a_way_out(wrong, words):
    with pytest.raises(SourceError, match=words):
        LoaderSource.of(wrong)


def test_a_loader_that_cannot_be_iterated_is_named_before_any_trial():
    with pytest.raises(SourceError, match="prefetch_factor=0 must be a whole number of 1 or more"):
        LoaderSource.of(DataLoader(Rows(), num_workers=1, prefetch_factor=0))


def written(folder, name, text):
    file = folder / name
    file.write_text(textwrap.dedent(text))
    return file


def test_a_file_is_checked_without_running_it(tmp_path, monkeypatch):
    file = written(
        tmp_path,
        "17 train-loop.py",
        """
        print("running"); raise SystemExit(3)
        if True:
            def make(num_workers=2, prefetch_factor=FACTOR, *, persistent_workers=True, note="x"):
                return []
        def dataset_first(dataset, num_workers=0): pass
        """,
    )
    monkeypatch.chdir(tmp_path)
    source = LoaderSource.of(f"{file.name}:make")
    assert source.accepts("persistent_workers") and not source.accepts("layout")
    assert source.current is None  # FACTOR is not known without running it
    with pytest.raises(SourceError, match=r"also asks for dataset"):
        LoaderSource.of(f"{file}:dataset_first")
    with pytest.raises(SourceError, match=r"SystemExit: 3.*under `if __name__"):
        source.resolve()


def test_files_that_cannot_be_imported_say_why(tmp_path):
    broken = written(tmp_path, "broken.py", "def make(:\n")
    with pytest.raises(SourceError, match=r"broken\.py, line 1, is not valid Python"):
        LoaderSource.of(f"{broken}:make")
    taken = written(tmp_path, "json.py", "def make(num_workers=0):\n    return []\n")
    with pytest.raises(SourceError, match=r"the name 'json' already belongs to .*rename the file"):
        LoaderSource.of(f"{taken}:make").resolve()
    inside = written(tmp_path, "inside_package.py", "from . import x\ndef make(num_workers=0):\n    return []\n")
    with pytest.raises(SourceError, match=r"ImportError.* name it as 'package\.module:callable'"):
        LoaderSource.of(f"{inside}:make").resolve()
    missing = written(tmp_path, "missing_import.py", "import no_such_module_at_all\ndef make(num_workers=0): pass\n")
    with pytest.raises(SourceError, match="ModuleNotFoundError: No module named 'no_such_module_at_all'"):
        LoaderSource.of(f"{missing}:make").resolve()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(SourceError, match=r"notes\.txt is not a \.py file"):
        LoaderSource.of(f"{tmp_path}/notes.txt:make")


def test_names_that_syntax_does_not_explain_are_imported(tmp_path):
    file = written(
        tmp_path,
        "made_otherwise.py",
        """
        import functools
        import torch
        from torch.utils.data import DataLoader
        def base(size, num_workers=3):
            return DataLoader(list(range(size)), batch_size=2, num_workers=num_workers)
        make = functools.partial(base, 6)
        loader = base(4, 0)
        number = 7
        data = loader.dataset
        class Pictures(torch.utils.data.Dataset):
            pass
        pictures = Pictures()
        Aliased = Pictures
        """,
    )
    partial = LoaderSource.of(f"{file}:make")
    assert partial.current == LoaderSettings(3) and partial.accepts("pin_memory")
    assert len(list(partial.build(LoaderSettings(0)))) == 3
    instance = LoaderSource.of(f"{file}:loader")
    assert instance.accepts("pin_memory") and instance.kind == "loader"
    assert len(list(instance.build(LoaderSettings(1)))) == 2
    with pytest.raises(SourceError, match="is 7; it must name a callable or a DataLoader"):
        LoaderSource.of(f"{file}:number").resolve()
    with pytest.raises(SourceError, match="is the Dataset class Pictures, not a DataLoader; write a function"):
        LoaderSource.of(f"{file}:Pictures")
    with pytest.raises(SourceError, match="is the Dataset class Pictures, not a DataLoader; write a function"):
        LoaderSource.of(f"{file}:Aliased").resolve()
    with pytest.raises(SourceError, match=r"is a Dataset \(Pictures\), not a DataLoader; write a function"):
        LoaderSource.of(f"{file}:pictures").resolve()


def test_modules_in_the_working_directory_are_found(tmp_path, monkeypatch):
    package = tmp_path / "project_of_a_user"
    package.mkdir()
    written(package, "__init__.py", "")
    written(package, "data.py", "from . import __name__ as n\ndef make(num_workers=0):\n    return [n]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    source = LoaderSource.of("project_of_a_user.data:make")
    assert list(source.build(LoaderSettings(0))) == ["project_of_a_user"]


def test_samples_are_sources():
    source = LoaderSource.of("sample:photos")
    assert source.name == "sample:photos" and source.accepts("num_workers") and source.current is not None


def test_fingerprints_tell_loaders_apart_and_ignore_knobs():
    def of(**kwargs):
        return LoaderSource.of(DataLoader(**{"dataset": Rows(), "batch_size": 4, **kwargs})).fingerprint()

    same = {of(), of(num_workers=2, prefetch_factor=4, persistent_workers=True, multiprocessing_context="spawn"), of()}
    assert len(same) == 1 and len(same.pop()) == 16
    sampled = BatchSampler(SequentialSampler(Rows()), 4, False)
    different = [
        of(),
        of(batch_size=5),
        of(shuffle=True),
        of(drop_last=True),
        of(collate_fn=as_list),
        of(collate_fn=lambda rows: rows),
        of(collate_fn=lambda rows: rows[0]),
        of(dataset=TensorDataset(torch.zeros(3))),
        of(dataset=TensorDataset(torch.zeros(4))),
        of(sampler=distributed()),
        of(sampler=DistributedSampler(Rows(), num_replicas=3, rank=2, seed=5)),
        LoaderSource.of(DataLoader(Rows(), batch_sampler=sampled)).fingerprint(),
        LoaderSource.of(make).fingerprint(),
        LoaderSource.of(make_few).fingerprint(),
        LoaderSource.of(functools.partial(make, pin_memory=True)).fingerprint(),
        LoaderSource.of(f"{__file__}:make").fingerprint(),
        LoaderSource.of(f"{__file__}:make_few").fingerprint(),
    ]
    assert len(set(different)) == len(different)


def test_an_epoch_that_was_told_does_not_make_another_loader():
    loader = DataLoader(Rows(), batch_size=4, sampler=distributed())
    before = LoaderSource.of(loader).fingerprint()
    loader.sampler.set_epoch(7)
    assert LoaderSource.of(loader).fingerprint() == before


def test_fingerprints_agree_between_processes(tmp_path):
    written(
        tmp_path,
        "user_code.py",
        """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Data(Dataset):
            names = {"b", "a", "c"}
            def __init__(self, root): self.root, self.sizes = root, {"x": 1.5}
            def __len__(self): return 3
            def __getitem__(self, i): return i in {1, 2, "z"}
        def loader(): return DataLoader(Data("/data"), batch_size=2, collate_fn=lambda rows: rows)
        """,
    )
    code = (
        "import user_code; from workbench.loaders.source import LoaderSource as S\n"
        "print(S.of(user_code.loader()).fingerprint(), S.of(user_code.loader).fingerprint(),\n"
        "      S.of('user_code:loader').fingerprint())"
    )
    told = set()
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    assert len(told) == 1 and len(set(told.pop().split())) == 3


def test_naming_a_source_imports_no_torch():
    code = (
        "import sys; from workbench.loaders.source import LoaderSource as S\n"
        f"s = S.of({__file__ + ':make_few'!r}); s.accepts('num_workers'), s.current, s.describe(), s.fingerprint()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def hard_coded(num_workers=0):
    return DataLoader(
        Rows(), batch_size=4, num_workers=num_workers, persistent_workers=num_workers > 0, pin_memory=False
    )


def test_what_a_factory_turns_by_itself_with_workers_is_seen_and_kept_unless_it_is_tried():
    source = LoaderSource.of(hard_coded)
    own = source.own_with_workers()
    assert own == {"persistent_workers": True}
    assert LoaderSource.of(make).own_with_workers() == {}

    kept = SearchSpace(num_workers=[0, 2]).resolve(source, current=LoaderSettings(), own_with_workers=own).settings
    assert kept == (LoaderSettings(), LoaderSettings(2, persistent_workers=True))
    assert source.build(kept[1]).persistent_workers
    tried = SearchSpace(num_workers=[2], persistent_workers=[False, True])
    both = tried.resolve(source, current=LoaderSettings(), own_with_workers=own).settings
    assert [one.persistent_workers for one in both] == [False, False, True]
    assert not source.build(both[1]).persistent_workers
