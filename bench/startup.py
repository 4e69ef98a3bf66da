"""How long `sgld` takes to start, warm, with twenty plugins installed beside those that are there.

    python bench/startup.py [--runs N] [--plugins N] [--output FOLDER]

Wall and CPU time of fresh processes, minimum and median of N each, beside `python -c pass`;
interleaved, so that a busy moment of the machine hits all of them. On a busy machine compare CPU
times and ratios. "discovery and description" is measured inside its process: what finding and
describing the twenty costs once Python and sgld are there. Targets: that below 50 ms, `sgld plugins
list` below 200 ms, help and completion below 150 ms. What is imported is held by tests, by module
list. Prints a table and writes JSON to bench/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from sgld.testing.site import site_environment, write_dist

RESULTS = Path(__file__).parent / "results"
SCAN = "from sgld.plugins.scan import scan; scan()"
METADATA = "from importlib.metadata import entry_points; entry_points(group='sgld.plugins.v1')"
COMPLETE = {"_SGLD_COMPLETE": "complete_bash", "COMP_WORDS": "sgld pl", "COMP_CWORD": "1"}
DESCRIBE = """
import os, sys, time
from sgld.plugins.catalog import collect
wall, cpu = time.perf_counter(), time.process_time()
catalog = collect({}, path=[sys.argv[1]])
print(time.perf_counter() - wall, time.process_time() - cpu)
assert len(catalog.plugins) == int(sys.argv[2]) + 1 and not catalog.failures
"""
PLUGIN = '''
"""A plugin of the usual size: a family of five, two kernels, an attention backend."""
from sgld.api import (
    AttentionSpec, Claims, KernelSpec, PipelineSpec, Plugin, Preset, Requires, Where, hookimpl
)

@hookimpl
def sgld_plugin():
    contracts = {{"pipeline": 1, "kernel": 1, "attention": 1}}
    return Plugin("{name}", contracts, summary="A plugin for the benchmark")

@hookimpl
def sgld_pipelines():
    for number in range(5):
        yield PipelineSpec(
            id=f"{name}-{{number}}", target="m:P", params="m:Q", tasks=("text-to-video",),
            claims=Claims(
                repos=(f"{name}/{{number}}",), aliases=(f"{name}{{number}}",),
                rules=((Where("model_index.json", "_class_name", "==", f"{name}{{number}}"),),),
            ),
            components={{"transformer": "dit", "vae": "vae"}},
            presets=(Preset("base", {{"num_inference_steps": 30}}),),
        )

@hookimpl
def sgld_kernels():
    yield KernelSpec("{name}-rms", "norm.rms", "m:k", Requires(device="cuda", arch=(80, 90)))
    yield KernelSpec("{name}-gate", "residual.gate", "m:k", Requires(device="cuda"))

@hookimpl
def sgld_attention():
    yield AttentionSpec("{name}-attention", "m:a", Requires(device="cuda", dtypes=("bfloat16",)))
'''


class Case(NamedTuple):
    """A process to start; with `told` it prints its own wall and CPU seconds."""

    name: str
    arguments: list[str]
    environ: dict[str, str] | None = None
    told: bool = False
    target_ms: float | None = None


def cases(site: Path, plugins: int) -> list[Case]:
    """What is measured; `python -c pass` is what the others are compared with."""
    sgld = ["-m", "sgld"]
    return [
        Case("python -c pass", ["-c", "pass"]),
        Case(
            "discovery and description", ["-c", DESCRIBE, str(site), str(plugins)],
            told=True, target_ms=50,
        ),
        Case("sgld --version", [*sgld, "--version"]),
        Case("sgld --help", [*sgld, "--help"], target_ms=150),
        Case("sgld plugins list", [*sgld, "plugins", "list"], target_ms=200),
        Case("sgld plugins why MODEL", [*sgld, "plugins", "why", "plugin0/2"]),
        Case("sgld models list", [*sgld, "models", "list"]),
        Case("shell completion", sgld, COMPLETE, target_ms=150),
        Case("our entry-point scan", ["-c", SCAN]),
        Case("importlib.metadata scan", ["-c", METADATA]),
    ]  # fmt: skip


def write_site(site: Path, plugins: int) -> None:
    """So many distributions with one plugin each."""
    for number in range(plugins):
        name = f"plugin{number}"
        write_dist(site, name, PLUGIN.format(name=name))


def run(case: Case, environ: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one fresh process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *case.arguments],
        env={**environ, **(case.environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{case.name} ended with {done.returncode}:\n{done.stderr}")
    if case.told:
        wall, cpu = (float(word) for word in done.stdout.split())
        return wall, cpu
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(chosen: list[Case], environ: dict[str, str], runs: int) -> dict[str, Any]:
    """Case → milliseconds, and ratios to the first case."""
    times: dict[str, list[tuple[float, float]]] = {case.name: [] for case in chosen}
    for round_ in range(runs + 1):
        for case in chosen:
            taken = run(case, environ)
            if round_:  # the first round warms the file cache and writes bytecode
                times[case.name].append(taken)
    rows: dict[str, Any] = {}
    base: dict[str, float] = {}
    for case in chosen:
        wall = [1000 * one for one, _ in times[case.name]]
        cpu = [1000 * two for _, two in times[case.name]]
        row = {
            "wall_ms": min(wall),
            "wall_ms_median": statistics.median(wall),
            "cpu_ms": min(cpu),
            "cpu_ms_median": statistics.median(cpu),
        }
        base = base or dict(row)
        row["wall_ratio_to_python"] = row["wall_ms"] / base["wall_ms"]
        row["target_ms"] = case.target_ms  # type: ignore[assignment]
        rows[case.name] = row
    return rows


def show(rows: dict[str, Any]) -> None:
    """The table."""
    print(f"{'':<28}{'min ms':>8}{'median':>8}{'cpu ms':>8}{'/python':>9}{'target':>8}")
    for name, row in rows.items():
        target = "" if row["target_ms"] is None else f"{row['target_ms']:.0f}"
        print(
            f"{name:<28}{row['wall_ms']:>8.1f}{row['wall_ms_median']:>8.1f}"
            f"{row['cpu_ms']:>8.1f}{row['wall_ratio_to_python']:>9.1f}{target:>8}"
        )


def main() -> None:
    """Measure, show and write down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument(
        "--plugins", type=int, default=20, help="throw-away ones, beside the others"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sgld-bench-") as folder:
        site = Path(folder)
        write_site(site, options.plugins)
        chosen = cases(site, options.plugins)
        environ = site_environment(site)
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        rows = measure(chosen, environ, options.runs)
    show(rows)
    settings = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "plugins": options.plugins,
        "runs": options.runs,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "startup.json"
    path.write_text(json.dumps({"settings": settings, "rows": rows}, indent=2) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
