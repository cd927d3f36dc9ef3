"""What a process pays once: imports, and the first append."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time

from benchmarks.measuring import Bench

_MODULES = {
    "bare Python": "sys",
    "transcript_backends": "transcript_backends",
    "boto3": "boto3",
    "aiobotocore": "aiobotocore.session",
    "obstore": "obstore",
    "google-cloud-storage": "google.cloud.storage",
    "azure-storage-blob": "azure.storage.blob",
}
_SDKS = ("boto3", "botocore", "google", "azure", "fsspec", "obstore")
IMPORTED = tuple(_MODULES)


def first_append(bench: Bench) -> None:
    """From the import to the first record stored, in a fresh process; the memory is what it needs for that."""
    place = json.dumps(bench.place._asdict())
    command = [sys.executable, "-m", "benchmarks.first", bench.name, place]
    bench.note(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def fresh_import(bench: Bench) -> None:
    """The faster of two fresh interpreters: the other was disturbed."""
    module = _MODULES[bench.name]
    if not importlib.util.find_spec(module.partition(".")[0]):
        raise ImportError(f"{bench.name} is not installed")
    command = [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"]
    loaded = set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    times = []
    for _ in range(bench.size(2, 1)):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        times.append(time.perf_counter() - began)
    bench.note(operations=1, seconds=min(times), modules=len(loaded), sdks=[each for each in _SDKS if each in loaded])
