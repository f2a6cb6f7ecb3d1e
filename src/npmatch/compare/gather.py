"""A comparison of finished runs in any folders, without a plan: methods and names follow from their configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from npmatch.compare.results import read_outcome
from npmatch.errors import NPMatchError
from npmatch.report import Comparison, Method
from npmatch.runs.folder import RunFolder, runs_below

Flat = Mapping[str, Any]  # a run's configuration: dotted key → value
PLACES = ("data.root", "data.foreign_root", "data.split", "data.workers")  # keys that do not distinguish methods
# Keys in a name if they differ between any two methods.
ALWAYS_NAMED = ("recipe", "data.source", "data.labels", "data.imbalance")
LONGEST_NAME = 60  # letters; if a name is longer, methods are named after their folders


def find_runs(folders: Iterable[Path], tell: Callable[[str], None] = lambda line: None) -> list[Path]:
    """The finished runs in these folders, or below them; `tell` is called with a line for each unfinished run."""
    runs: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise NPMatchError(f"{folder}: no such run")
        inside = [folder] if RunFolder(folder).exists() else runs_below(folder)
        finished = [run for run in inside if RunFolder(run).is_finished()]
        if not finished:
            raise NPMatchError(f"{folder}: holds no finished run; train one, or finish one with --resume")
        for run in [run for run in inside if run not in finished]:
            tell(f"{run}: not finished, left out")
        runs += finished
    return list(dict.fromkeys(runs))


def gather(runs: Iterable[Path]) -> Comparison:
    """The comparison of these runs. Runs that differ only in their seed are one method, named by what is different."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[int, Path, Flat]]] = {}
    for run in runs:
        flat = RunFolder(run).read_config().flat()
        seed = int(flat.pop("seed"))
        method = {key: value for key, value in flat.items() if key not in PLACES}
        groups.setdefault(tuple((key, str(value)) for key, value in method.items()), []).append((seed, run, method))
    flats = [members[0][2] for members in groups.values()]
    names = _names(flats)
    if any(len(name) > LONGEST_NAME for name in names):
        names = _folder_names([[run for _, run, _ in members] for members in groups.values()])
    methods = [
        Method(
            name,
            [read_outcome(RunFolder(run), seed) for seed, run, _ in sorted(members, key=lambda member: member[:2])],
            iterations=members[0][2]["training.iterations"],
        )
        for name, members in zip(names, groups.values(), strict=True)
    ]
    keys = dict.fromkeys(key for flat in flats for key in flat)
    by_key = {key: [flat.get(key) for flat in flats] for key in keys}
    shared = {key: values[0] for key, values in by_key.items() if all(value == values[0] for value in values)}
    apart = {key: values for key, values in by_key.items() if key not in shared}
    return Comparison(f"{len(flats)} methods beside one another", methods, shared, apart=apart)


def _names(flats: list[Flat]) -> list[str]:
    """The algorithm of each method, with the settings in which it differs from others of the same algorithm."""
    names = []
    for flat in flats:
        rivals = [other for other in flats if other["algorithm.name"] == flat["algorithm.name"]]
        keys = [key for key in flat if any(other.get(key) != flat[key] for other in rivals)]
        keys += [key for key in ALWAYS_NAMED if key not in keys and any(other[key] != flat[key] for other in flats)]
        settings = ";".join(f"{key}={flat[key]}" for key in keys if key != "algorithm.name")
        names.append(f"{flat['algorithm.name']}[{settings}]" if settings else str(flat["algorithm.name"]))
    return names


def _folder_names(groups: list[list[Path]]) -> list[str]:
    """The path of each method's first run, as short as distinguishes it from the others."""
    firsts = [sorted(runs)[0].resolve() for runs in groups]
    for length in range(1, max(len(first.parts) for first in firsts) + 1):
        names = ["/".join(first.parts[-length:]) for first in firsts]
        if len(set(names)) == len(names):
            break
    return [f"{name} + {len(runs) - 1}" if len(runs) > 1 else name for name, runs in zip(names, groups, strict=True)]
