"""Probes, each with one fault; torch-free but for the one that is not."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

from sgld.platforms.probe import Device, Probe

ONE = Probe(True, devices=(Device(0, "one", 0, 2**30),))
TWO = Probe(True, devices=(*ONE.devices, Device(1, "two", 0, 2**30)))


def good() -> Probe:
    hidden = os.environ.get("BAD_VISIBLE_DEVICES") == "-1"
    return Probe(False, "BAD_VISIBLE_DEVICES hides every device") if hidden else ONE


def two() -> Probe:
    return TWO


def raises_on_odd_values() -> Probe:
    int(os.environ.get("BAD_VISIBLE_DEVICES") or 0)
    return good()


def hangs_on_99() -> Any:
    if os.environ.get("BAD_VISIBLE_DEVICES") == "99":
        threading.Event().wait()
    return good()


def answers_with_a_mapping() -> Any:
    return {"available": True}


def no_reason() -> Probe:
    return Probe(False)


def no_devices() -> Probe:
    return Probe(True)


def odd_devices() -> Any:
    return Probe(True, devices=(Device(0, "", -1, 2**30),))


turns = itertools.count()


def counts() -> Probe:
    return Probe(True, devices=(Device(0, "one", 0, 2**30 + next(turns)),))


def imports_numpy() -> Probe:
    import numpy as np

    return good() if np.__version__ else ONE


def prints() -> Probe:
    print("looking for devices")
    return good()


def ignores_its_variable() -> Probe:
    return ONE


def ends_the_process() -> Probe:
    os._exit(7)


def another_arch() -> Probe:
    return Probe(True, devices=(Device(0, "one", 90, 2**30),))


def other_dtypes() -> Probe:
    return Probe(True, devices=(Device(0, "one", 0, 2**30, frozenset({"float16"})),))
