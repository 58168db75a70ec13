"""Text: read one document out of a compressed file, tokenise it, pad a batch."""

from __future__ import annotations

import bisect
import gzip
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from workbench.errors import SamplesError
from workbench.samples import data_directory
from workbench.samples.epoch import data_loader, epoch, folder_of, require

SAMPLES_PER_EPOCH = 8192
END_OF_TEXT = 0  # id of <|endoftext|> in bpe8k.json, which pads as well
# Longest documents hold 36,000 tokens; a token of this vocabulary is seldom longer than 8 characters.
CHARACTERS_PER_TOKEN = 8
READ_BYTES = 1 << 20


def text(
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    multiprocessing_context: str | None = None,
    in_order: bool = True,
    batch_size: int = 16,
    *,
    data: str | Path | None = None,
    samples_per_epoch: int | None = None,
    max_tokens: int = 1024,
    seed: int = 0,
) -> DataLoader:
    """A loader of batches {"input_ids": int64 [B, T], "lengths": int64 [B]}, T being the longest of the batch.

    Args:
        data: Folder with `*.jsonl.gz`, each line an object with "text"; None takes the sample data.
        samples_per_epoch: Length of an epoch; None goes once through the documents, or to 8,192 where they are fewer.
        max_tokens: Longer documents give a random stretch of this many tokens.
        seed: Another seed, other stretches and another order.

    Raises:
        SamplesError: If there are no documents, or the package tokenizers is missing.
    """
    require("tokenizers")
    dataset = Documents(folder_of(data), samples_per_epoch, max_tokens, seed)
    knobs = (num_workers, prefetch_factor, pin_memory, persistent_workers, multiprocessing_context, in_order)
    return data_loader(dataset, batch_size, *knobs, collate_fn=pad)


class Documents(Dataset):
    """Map-style: token ids (int64 [T]) of one document for an index."""

    def __init__(self, folder: Path, samples_per_epoch: int | None, max_tokens: int, seed: int) -> None:
        self.reader = DocumentReader(sorted(str(path) for path in folder.rglob("*.jsonl.gz")))
        self.epoch = epoch(
            len(self.reader), samples_per_epoch, SAMPLES_PER_EPOCH, seed, f"*.jsonl.gz files in {folder}"
        )
        self.vocabulary = str(_vocabulary(folder))
        self.max_tokens = max_tokens
        self._tokenizer: tuple[int, Any] | None = None  # (process id, tokenizer)

    def __len__(self) -> int:
        return self.epoch.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        item, chance = self.epoch.visit(index)
        document = self.reader.read(item)["text"]
        spare = len(document) - CHARACTERS_PER_TOKEN * self.max_tokens
        start = chance.randint(0, spare) if spare > 0 else 0
        ids = self._open().encode(document[start : start + CHARACTERS_PER_TOKEN * self.max_tokens]).ids
        return torch.tensor(ids[: self.max_tokens] or [END_OF_TEXT])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tokenizer": None}

    def _open(self) -> Any:
        if self._tokenizer is None or self._tokenizer[0] != os.getpid():
            if get_worker_info() is not None:
                os.environ["TOKENIZERS_PARALLELISM"] = (
                    "false"  # workers are the parallelism; its threads do not survive a fork
                )
            from tokenizers import Tokenizer

            self._tokenizer = os.getpid(), Tokenizer.from_file(self.vocabulary)
        return self._tokenizer[1]


def pad(documents: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch of documents of unlike lengths as one rectangle."""
    lengths = torch.tensor([len(document) for document in documents])
    ids = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=END_OF_TEXT)
    return {"input_ids": ids, "lengths": lengths}


# -- one document of a compressed file, without the rest --


@dataclass(frozen=True)
class Members:
    """Where the members of a gzip file begin, and the first document of each.

    Attributes:
        documents: Documents in the file.
        offsets: Byte at which each member begins.
        firsts: Number of each member's first document.
    """

    documents: int
    offsets: tuple[int, ...]
    firsts: tuple[int, ...]


class DocumentReader:
    """Random access to the lines of `*.jsonl.gz` files: a read decompresses one gzip member, about 64 kB."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        self.members = [members_of(file) for file in files]
        self.starts = [0]
        for members in self.members:
            self.starts.append(self.starts[-1] + members.documents)
        self._last: tuple[tuple[int, int], list[bytes]] = ((-1, -1), [])

    def __len__(self) -> int:
        return self.starts[-1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": ((-1, -1), [])}

    def read(self, number: int) -> dict[str, Any]:
        """The document as its JSON object; IndexError if there is none of that number."""
        if not 0 <= number < len(self):
            raise IndexError(f"document {number} of {len(self)}")
        file = bisect.bisect_right(self.starts, number) - 1
        number -= self.starts[file]
        member = bisect.bisect_right(self.members[file].firsts, number) - 1
        return json.loads(self._lines(file, member)[number - self.members[file].firsts[member]])

    def _lines(self, file: int, member: int) -> list[bytes]:
        if self._last[0] != (file, member):
            offsets = self.members[file].offsets
            with open(self.files[file], "rb") as stream:  # opened for each read: nothing is shared across a fork
                stream.seek(offsets[member])
                packed = stream.read(offsets[member + 1] - offsets[member] if member + 1 < len(offsets) else -1)
            self._last = (file, member), gzip.decompress(packed).splitlines()
        return self._last[1]


def members_of(file: str | Path) -> Members:
    """The members of a gzip file, from the index beside it or, without a right one, by one pass over the file."""
    index = index_path(file)
    if index.is_file():
        found = json.loads(index.read_text())
        if found.get("bytes") == os.path.getsize(file):
            offsets, firsts = zip(*found["members"], strict=True)
            return Members(found["documents"], offsets, firsts)
    return _scan(Path(file))


def index_path(file: str | Path) -> Path:
    """Where the index of `text.jsonl.gz` is kept: `text.index.json`."""
    return Path(file).with_name(Path(file).name.removesuffix(".jsonl.gz") + ".index.json")


def pack(lines: list[bytes], member_bytes: int = 1 << 16) -> tuple[bytes, bytes]:
    """Lines as a gzip file of many members, and its index."""
    packed, members, waiting, size = bytearray(), [], [], 0
    for number, line in enumerate(lines):
        waiting.append(line)
        size += len(line)
        if size >= member_bytes or number + 1 == len(lines):
            members.append((len(packed), number + 1 - len(waiting)))
            packed += gzip.compress(b"".join(waiting), mtime=0)
            waiting, size = [], 0
    index = {"documents": len(lines), "bytes": len(packed), "members": members}
    return bytes(packed), json.dumps(index).encode()


def _scan(file: Path) -> Members:
    offsets, firsts, documents, position, tail = [], [], 0, 0, b"\n"
    with open(file, "rb") as stream:
        packed = stream.read(READ_BYTES)
        while packed:
            offsets.append(position)
            firsts.append(documents)
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                if not packed:
                    raise SamplesError(f"{file} ends in the middle of its compressed data: copy or grow it again")
                raw = _inflate(member, packed, file)
                documents += raw.count(b"\n")
                tail = raw[-1:] or tail
                position += len(packed) - len(member.unused_data)
                packed = member.unused_data or stream.read(READ_BYTES)
    return Members(documents + (tail != b"\n"), tuple(offsets), tuple(firsts))


def _inflate(member: Any, packed: bytes, file: Path) -> bytes:
    try:
        return member.decompress(packed)
    except zlib.error as error:
        raise SamplesError(f"{file} is not gzip, or damaged ({error}): copy or grow it again") from None


def _vocabulary(folder: Path) -> Path:
    near = folder / "bpe8k.json"
    return near if near.is_file() else data_directory() / "bpe8k.json"
