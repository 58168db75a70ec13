"""A user's error as text: the type, the message, and above all the line that is the user's own."""

from __future__ import annotations

import os
import sysconfig
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from workbench.measure.failures import describe_error

TORCH = os.path.join(os.path.dirname(torch.__file__), "utils", "data", "_utils", "fetch.py")
PILLOW = os.path.join(sysconfig.get_path("purelib"), "PIL", "Image.py")
JSON = os.path.join(sysconfig.get_path("stdlib"), "json", "decoder.py")


def line_told(*frames: tuple[str, str]) -> str:
    """The line named for a traceback of these (file, function), outermost first; the n-th is at line n."""
    text = "".join(f'  File "{file}", line {n}, in {name}\n' for n, (file, name) in enumerate(frames, 1))
    wrapped = f"Caught ValueError in DataLoader worker process 1.\nOriginal Traceback:\n{text}ValueError: broken"
    return describe_error(RuntimeError(wrapped), [])["line"]


@pytest.mark.parametrize("folder", ["/home/me/train", "/home/me/workbench", "/srv/torch/jobs"])
def test_the_users_own_line_is_told_whatever_their_folder_is_called(folder):
    assert line_told((TORCH, "fetch"), (f"{folder}/data.py", "load")) == f"{folder}/data.py:2 in load"


def test_what_a_library_raises_is_told_by_the_users_line_that_called_it():
    assert line_told((TORCH, "fetch"), ("/home/me/data.py", "load"), (PILLOW, "open")) == "/home/me/data.py:2 in load"
    assert line_told((TORCH, "fetch"), ("/home/me/data.py", "load"), (JSON, "decode")) == "/home/me/data.py:2 in load"


def test_without_a_line_of_the_users_that_of_the_library_is_told_and_never_torchs():
    assert line_told((TORCH, "fetch"), (PILLOW, "open"), (JSON, "decode")) == f"{PILLOW}:2 in open"
    assert line_told((TORCH, "fetch"), (JSON, "decode")) == ""


def test_a_cell_is_told_as_the_notebook_numbers_it():
    assert line_told((TORCH, "fetch"), ("In[3]", "__getitem__")) == "In[3], line 2, in __getitem__"


def test_an_error_in_a_worker_keeps_its_own_type_message_and_number():
    wrapped = "Caught user.Odd in DataLoader worker process 4.\nOriginal Traceback:\n  x\nuser.Odd: shard-7 gave up"
    found = describe_error(RuntimeError(wrapped), [])

    assert (found["worker"], found["message"]) == (4, "shard-7 gave up")


def test_workers_that_died_are_told_by_their_exit_codes():
    class Worker:
        def __init__(self, exitcode):
            self.exitcode = exitcode

    assert describe_error(OSError("x"), [Worker(None), Worker(-9), Worker(0)])["exit_codes"] == {"1": -9}


class Locked(Dataset):
    def __init__(self):
        self.tools = {"lock": threading.Lock()}


def test_what_cannot_be_sent_to_a_started_worker_is_told_by_its_place():
    loader = DataLoader(Locked(), sampler=[0])
    refused = TypeError("cannot pickle '_thread.lock' object")

    assert describe_error(refused, [], loader)["unsendable"].startswith("dataset.tools['lock'] (TypeError")
    assert describe_error(ValueError("broken"), [], loader)["unsendable"] == ""
