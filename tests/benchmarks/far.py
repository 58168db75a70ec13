"""The same photographs decoded by two workers: from shards in a folder, and from an S3 server 20 ms away.

    python tests/benchmarks/layouts.py --part loaders [--rounds 5] [--photographs 3000] [--libraries FOLDER] [--json]

What is compared is a whole pass of one training loader over the same tar shards: data set opened, workers started,
each photograph decoded and cropped, batches of 32 handed over. Near is a folder in the page cache. Far is `moto`'s
server, on this machine, with each request 20 ms late, and nothing in the cache at the start of a pass: everything is
fetched, checked against the manifest and kept on disk. Near and far alternate. The server and what fetches from it take
their CPU from the same cores as the decoding, which a real store would not: the server's share is printed.
`webdataset` reads the same objects over HTTP, for comparison.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from workbench.layouts import KEY, convert, open_dataset, open_remote
from workbench.samples import data_directory
from workbench.streaming.loader import StreamLoader
from workbench.streaming.stream import ShardStream

PHOTOGRAPHS, SHARDS = 3000, 10
WIDTH, HEIGHT, QUALITY = 500, 375, 90
"""The usual photograph of ImageNet."""
CROP = 224
BATCH, WORKERS = 32, 2
ROUND_TRIP_SECONDS = 0.020
BUCKET, TARGET = "bucket", 0.85
SEED = 0


def photographs(count: int) -> Iterator[dict[str, Any]]:
    """Random crops of the sample photographs, all different, ``WIDTH`` by ``HEIGHT`` pixels."""
    chance = random.Random(SEED)
    sources = sorted((data_directory() / "photos").rglob("*.jpg"))
    each = -(-count // len(sources))
    for number, path in enumerate(sources):
        with Image.open(path) as opened:
            opened.draft("RGB", (2 * WIDTH, 2 * HEIGHT))
            image = opened.convert("RGB")
        scale = max(1.5 * WIDTH / image.width, 1.5 * HEIGHT / image.height)
        image = image.resize((round(image.width * scale), round(image.height * scale)))
        for copy in range(min(each, count - number * each)):
            left, top = chance.randint(0, image.width - WIDTH), chance.randint(0, image.height - HEIGHT)
            content = io.BytesIO()
            image.crop((left, top, left + WIDTH, top + HEIGHT)).save(content, "JPEG", quality=QUALITY)
            yield {KEY: f"{number:03d}-{copy:03d}", "jpg": content.getvalue()}


def decoded(sample: dict[str, Any]) -> torch.Tensor:
    """A random part of a photograph as training takes it, shape ``[3, CROP, CROP]``, float32, mean about 0."""
    with Image.open(io.BytesIO(sample["jpg"])) as image:
        side = random.uniform(0.5, 1.0) * image.height
        left, top = random.uniform(0, image.width - side), random.uniform(0, image.height - side)
        box = (left, top, left + side, top + side)
        part = image.convert("RGB").resize((CROP, CROP), Image.Resampling.BILINEAR, box)
    pixels = torch.from_numpy(np.array(part)).permute(2, 0, 1).float()
    return (pixels - 118.0) / 58.0


@dataclass(frozen=True)
class Server:
    """A store that is running.

    Attributes:
        address: ``http://127.0.0.1:port``.
        pid: Its process.
    """

    address: str
    pid: int

    def options(self) -> dict[str, Any]:
        """What obstore must know to read from it."""
        return {
            "endpoint": self.address,
            "skip_signature": True,
            "region": "us-east-1",
            "client_options": {"allow_http": True},
        }

    def cpu_seconds(self) -> float:
        """What it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextlib.contextmanager
def served(folder: Path, libraries: str | None) -> Iterator[Server]:
    """moto's server in a process of its own, holding the files of ``folder``.

    Raises:
        ImportError: moto is not installed.
    """
    command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), libraries or ""]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        if not address.startswith("http"):
            raise ImportError("moto[server]: " + (address or "its server ended"))
        _put(f"{address}/{BUCKET}", b"")
        for path in sorted(folder.iterdir()):
            _put(f"{address}/{BUCKET}/data/{path.name}", path.read_bytes())
        yield Server(address, process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def serve() -> None:
    """Life of the server: each request a round trip late, the address on standard output."""
    try:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server
    except ImportError as error:
        print(error, flush=True)
        return
    answers = DomainDispatcherApplication(create_backend_app)

    def late(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        time.sleep(ROUND_TRIP_SECONDS)
        return answers(environ, start_response)

    class Connection(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # several requests a connection, as stores allow

        def log(self, *_: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, late, threaded=True, request_handler=Connection)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()


_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]) + [sys.argv[2]] * bool(sys.argv[2]); "
    "from tests.benchmarks.far import serve; serve()"
)


def _put(url: str, content: bytes) -> None:
    headers = {"x-amz-acl": "public-read", "Content-Type": "application/octet-stream"}  # readers send no signature
    urllib.request.urlopen(urllib.request.Request(url, content, headers, method="PUT")).close()


def pass_of(reader: Any) -> int:
    """Samples of one pass of the loader."""
    stream = ShardStream(reader, transform=decoded, batch_size=BATCH, seed=SEED)
    return sum(len(batch) for batch in StreamLoader(stream, batch_size=None, num_workers=WORKERS, prefetch_factor=4))


def far_pass(server: Server, caches: Path) -> int:
    with tempfile.TemporaryDirectory(dir=caches) as cache:
        options = server.options()
        return pass_of(open_remote(f"s3://{BUCKET}/data", storage_options=options, cache_directory=cache))


def webdataset_pass(urls: list[str]) -> int:
    import webdataset

    data = webdataset.WebDataset(urls, shardshuffle=False).map(decoded).batched(BATCH, collation_fn=torch.stack)
    return sum(len(batch) for batch in DataLoader(data, batch_size=None, num_workers=WORKERS, prefetch_factor=4))


def contenders(root: Path, server: Server) -> dict[str, Callable[[], int]]:
    """Name -> a whole pass."""
    tars = sorted((root / "far").glob("*.tar"))
    found: dict[str, Callable[[], int]] = {
        "near": lambda: pass_of(open_dataset(root / "far")),
        "far": lambda: far_pass(server, root),
    }
    try:
        import webdataset  # noqa: F401
    except ImportError:
        return found
    found["webdataset, near"] = lambda: webdataset_pass([str(path) for path in tars])
    found["webdataset, far"] = lambda: webdataset_pass([f"{server.address}/{BUCKET}/data/{p.name}" for p in tars])
    return found


def measure(root: Path, rounds: int, count: int = PHOTOGRAPHS, libraries: str | None = None) -> dict[str, Any]:
    """Samples a second of each, medians over the rounds, and far over near within a round.

    Raises:
        ImportError: moto is not installed.
    """
    convert(list(photographs(count)), root / "far", "tar", shards=SHARDS, processes=1)
    rates: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    with served(root / "far", libraries) as server:
        for number in range(rounds + 1):
            order = list(contenders(root, server).items())
            for name, run in random.Random(number).sample(order, len(order)):
                before, began = server.cpu_seconds(), time.perf_counter()
                samples = run()
                seconds = time.perf_counter() - began
                if samples != count:
                    raise ValueError(f"{name} handed out {samples} of {count} photographs.")
                print(f"round {number}, {name}: {samples / seconds:,.0f} samples/s", file=sys.stderr, flush=True)
                if number:  # the first round warms the page cache
                    rates.setdefault(name, []).append(samples / seconds)
                    used.setdefault(name, []).append((server.cpu_seconds() - before) / seconds)
    ratios = {"far / near": [f / n for f, n in zip(rates["far"], rates["near"], strict=True)]}
    if "webdataset, far" in rates:
        pairs = zip(rates["webdataset, far"], rates["webdataset, near"], strict=True)
        ratios["webdataset, far / near"] = [f / n for f, n in pairs]
        ratios["far / webdataset, far"] = [f / w for f, w in zip(rates["far"], rates["webdataset, far"], strict=True)]
    return {
        "samples_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "server_cores": {name: statistics.median(values) for name, values in used.items()},
        "ratios": {name: statistics.median(values) for name, values in ratios.items()},
        "ratio_range": {name: [min(values), max(values)] for name, values in ratios.items()},
        "targets": {"far / near": TARGET},
        "photographs": count,
        "shards": SHARDS,
        "workers": WORKERS,
    }


def as_text(found: dict[str, Any]) -> str:
    """The results as lines for people."""
    lines = [
        f"{name + ', decoding, 2 workers':34} {rate:12,.0f} samples/s"
        + (f"   the server took {found['server_cores'][name]:.2f} cores" if "far" in name else "")
        for name, rate in found["samples_per_second"].items()
    ]
    for name, ratio in found["ratios"].items():
        low, high = found["ratio_range"][name]
        target = f"  (target {found['targets'][name]}x)" if name in found["targets"] else ""
        lines.append(f"{name:44} {ratio:8.2f}x  ({low:.2f} to {high:.2f}){target}")
    return "\n".join(lines)
