"""Stands between the caller and everything a trial starts: watches, measures from outside, and leaves nothing alive.

A small process of its own with the standard library alone and one thread. It is a child subreaper, so every orphan of
a trial becomes its child, and "no child but the trial server is left" proves that a trial is gone. It reads commands
on stdin; when that closes, the caller has died, and so does everything below.

    caller --stdin/report--> warden --socket--> trial server (imports torch and the user's loader once)
                                `--pipes------> trial (forked twice by the server, so that it is the warden's child)
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import time
from dataclasses import asdict
from typing import Any

from workbench.measure import memory
from workbench.measure.output import Output
from workbench.measure.processes import become_subreaper, kill_descendants, reap
from workbench.measure.watch import Watch

TICK_SECONDS = 0.2
"""How often the tree is looked at. At 10 Hz, RSS and processor time of three processes took 1 % of a core."""
HELLO_SECONDS = 20.0
"""How long the server may take to fork a trial."""
EXIT_SECONDS = 5.0
"""How long a trial may take to end after it has said that it is done."""


class Warden:
    """Runs one command after another until its caller goes away.

    Args:
        config: `server_argv`, `server_env`, `directory` (removed at the end), `report_fd`, `cores`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._caller = os.getppid()
        self._server: int | None = None
        self._socket: socket.socket | None = None
        self._server_output = Output()
        self._server_output_fd = -1
        self._ready: dict[str, Any] = {}
        self._commands = b""
        self._cancelled = False

    def serve(self) -> None:
        """Handles commands until stdin closes; then ends everything below and removes the private directory."""
        try:
            while (command := self._next_command()) is not None:
                if command["op"] == "run":
                    self._report(self._run(command))
                elif command["op"] == "start":
                    self._report(self._start_server(command["seconds"]))
        finally:
            kill_descendants()
            shutil.rmtree(self._config["directory"], ignore_errors=True)

    def _next_command(self) -> dict[str, Any] | None:
        while True:
            line, newline, rest = self._commands.partition(b"\n")
            if newline:
                self._commands = rest
                command = json.loads(line)
                if command["op"] == "cancel":
                    continue
                self._cancelled = False
                return command
            if not self._read_commands(block=True):
                return None

    def _read_commands(self, *, block: bool = False) -> bool:
        """Takes in what the caller has written; False when the caller is gone."""
        while True:
            if os.getppid() != self._caller:
                return False
            readable, _, _ = select.select([0], [], [], 1.0 if block else 0.0)
            if readable:
                data = os.read(0, 1 << 16)
                self._commands += data
                return bool(data)
            if not block:
                return True
            self._drain_server()

    def _caller_wants_out(self) -> str:
        """ "cancelled", "caller gone" or ""; a cancel is taken off the queue."""
        if not self._read_commands():
            return "caller gone"
        lines = self._commands.split(b"\n")
        kept = [line for line in lines if line.strip() != b'{"op": "cancel"}']
        self._cancelled |= len(kept) < len(lines)
        self._commands = b"\n".join(kept)
        return "cancelled" if self._cancelled else ""

    def _start_server(self, seconds: float) -> dict[str, Any]:
        """Starts the trial server and waits until it has loaded the user's loader, or says why it has not."""
        self._end_server()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read_fd, write_fd = os.pipe()
        argv = self._config["server_argv"]
        environment = os.environ | self._config["server_env"]
        self._server = os.fork()
        if self._server == 0:
            _exec_server(argv, environment, theirs.fileno(), write_fd, self._config["cwd"])
        theirs.close()
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        self._socket, self._server_output_fd, self._server_output = ours, read_fd, Output()
        self._ready = self._await_ready(time.monotonic() + seconds)
        if self._ready.get("kind") != "ready":
            self._end_server()
        return self._ready | {"output": self._server_output.text(), "output_bytes": self._server_output.total}

    def _await_ready(self, deadline: float) -> dict[str, Any]:
        assert self._socket is not None
        while time.monotonic() < deadline:
            readable, _, _ = select.select([self._socket, self._server_output_fd], [], [], TICK_SECONDS)
            if self._socket in readable:
                data = self._socket.recv(1 << 20)
                if data:
                    return json.loads(data)
                time.sleep(0.05)
                code = reap().get(self._server or -1)
                self._drain_server()
                return {"kind": "lost", "exit_code": code}
            self._drain_server()
            if out := self._caller_wants_out():
                return {"kind": "lost", "exit_code": None, "why": out}
        return {"kind": "lost", "exit_code": None, "why": "timed out"}

    def _end_server(self) -> None:
        if self._server is not None:
            self._drain_server()
            with contextlib.suppress(OSError):
                os.close(self._server_output_fd)
            if self._socket is not None:
                self._socket.close()
        self._server, self._socket, self._server_output_fd = None, None, -1
        kill_descendants()

    def _drain_server(self) -> None:
        if self._server_output_fd >= 0:
            self._server_output.drain(self._server_output_fd)

    def _run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Runs one trial to its end, however it ends, and says what was seen."""
        begun = time.monotonic()
        forks = bool(self._ready.get("forks", True))
        if self._server is None:
            state = self._start_server(command["limits"]["deadline_seconds"])
            if state.get("kind") != "ready":
                return {"kind": "verdict", "id": command["id"], "ended": "server lost", "server": state}
        watch = Watch(command["limits"], self._config["cores"], command["task"]["temporary"])
        try:
            if not self._hand_over(command["task"], watch):
                watch.ended = "server lost"
            else:
                self._supervise(watch, forks)
        finally:
            verdict = self._clean_up(watch, forks)
        verdict |= {"kind": "verdict", "id": command["id"], "wall_seconds": time.monotonic() - begun}
        return verdict

    def _hand_over(self, task: dict[str, Any], watch: Watch) -> bool:
        """Sends the task and the trial's ends of its pipes to the server; True when the trial has said hello."""
        assert self._socket is not None
        theirs = watch.open_pipes()
        try:
            socket.send_fds(self._socket, [json.dumps(task).encode()], list(theirs))
        except OSError:
            return False
        finally:
            for fd in theirs:
                os.close(fd)
        deadline = time.monotonic() + HELLO_SECONDS
        while watch.pid is None and time.monotonic() < deadline and not watch.report_closed:
            select.select([watch.report_fd], [], [], TICK_SECONDS)
            watch.take_messages()
            self._drain_server()
        return watch.pid is not None

    def _supervise(self, watch: Watch, forks: bool) -> None:
        server = self._server if forks else None
        hidden = {os.getpid(), server}
        next_tick = 0.0
        pids: list[int] = []
        while not watch.ended:
            ready = [watch.report_fd, watch.output_fd, 0]
            readable, _, _ = select.select(ready, [], [], max(0.0, next_tick - time.monotonic()))
            if watch.output_fd in readable:
                watch.output.drain(watch.output_fd)
            if watch.report_fd in readable:
                for message in watch.take_messages():
                    self._answer(message, watch, hidden, server)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_SECONDS
                pids = [pid for pid in memory.tree(os.getpid()) if pid not in hidden]
                watch.tick(pids, server, spent=time.process_time())
                self._drain_server()
            if 0 in readable or watch.overdue(now):
                watch.ended = watch.ended or self._caller_wants_out() or watch.overdue(now)
            for pid, code in reap().items():
                watch.exited(pid, code)
                if pid == self._server:
                    self._server = None
                    if forks:
                        watch.ended = watch.ended or "server lost"

    def _answer(self, message: dict[str, Any], watch: Watch, hidden: set[int | None], server: int | None) -> None:
        if "window" in message:
            window = watch.add_window(message["window"])
            self._report({"kind": "window", "window": asdict(window)})
            if watch.enough():
                watch.tell(b"s")
        elif "memory" in message:
            pids = [pid for pid in memory.tree(os.getpid()) if pid not in hidden]
            cost = watch.read_exactly(pids, server, message["memory"])
            self._report({"kind": "memory", "cost_bytes": cost.cost_bytes, "rss_bytes": cost.rss_bytes})
            watch.tell(b"g")
        elif "phase" in message:
            self._report({"kind": "phase", "phase": message["phase"], "part": message.get("part", "")})

    def _clean_up(self, watch: Watch, forks: bool) -> dict[str, Any]:
        """Lets a trial that is done exit, kills what is left of it, and gathers what was seen."""
        deadline = time.monotonic() + EXIT_SECONDS
        while watch.finished and watch.exit_code is None and time.monotonic() < deadline:
            watch.output.drain(watch.output_fd)
            for pid, code in reap().items():
                watch.exited(pid, code)
            time.sleep(0.001)
        keep = frozenset({self._server}) if forks and self._server is not None else frozenset()
        for pid, code in kill_descendants(keep).items():
            watch.exited(pid, code)
        if not forks:
            self._end_server()
        watch.take_messages()
        watch.output.drain(watch.output_fd)
        watch.close_pipes()
        return watch.summary()

    def _report(self, message: dict[str, Any]) -> None:
        data = (json.dumps(message) + "\n").encode()
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._config["report_fd"], data) :]


def _exec_server(argv: list[str], environment: dict[str, str], socket_fd: int, output_fd: int, cwd: str) -> None:
    """In the forked child: becomes the trial server, with its socket on descriptor 3 and its output in a pipe."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.dup2(socket_fd, 3)
        os.closerange(4, 256)
        os.chdir(cwd)
        os.execve(argv[0], argv, environment)
    finally:
        os._exit(127)


def main(argument: str) -> None:
    """Entry of the warden's process; `argument` is its configuration as JSON."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    become_subreaper()
    Warden(json.loads(argument)).serve()
