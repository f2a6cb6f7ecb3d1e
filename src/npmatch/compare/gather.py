"""Finished runs from anywhere beside one another: no plan, only what their folders say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from npmatch.compare.results import read_outcome
from npmatch.errors import NPMatchError
from npmatch.report import Comparison, Method
from npmatch.runs.folder import RunFolder, runs_below

Flat = Mapping[str, Any]  # a run's configuration, dotted keys
PLACES = ("data.root", "data.foreign_root", "data.split", "data.workers")  # where things lie: no difference in method
ALWAYS_SAID = ("recipe", "data.source", "data.labels")
LONGEST_NAME = 60  # letters; methods that more would set apart are called after their folders


def find_runs(folders: Iterable[Path], tell: Callable[[str], None] = lambda line: None) -> list[Path]:
    """The finished runs that these folders are, or that lie below them; `tell` hears of others that lie there."""
    runs: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise NPMatchError(f"{folder}: no such run")
        inside = [folder] if RunFolder(folder).exists() else runs_below(folder)
        finished = [run for run in inside if RunFolder(run).is_finished()]
        if not finished:
            raise NPMatchError(f"{folder}: no finished run in it; train one, or go on with it by --resume")
        for run in [run for run in inside if run not in finished]:
            tell(f"{run}: not finished, left out")
        runs += finished
    return list(dict.fromkeys(runs))


def gather(runs: Iterable[Path]) -> Comparison:
    """Runs that differ in their seed alone are one method; a method is named after what sets it apart."""
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
    values = {key: [flat.get(key) for flat in flats] for key in keys}
    shared = {key: found[0] for key, found in values.items() if all(value == found[0] for value in found)}
    apart = {key: found for key, found in values.items() if key not in shared}
    return Comparison(f"{len(flats)} methods beside one another", methods, shared, apart=apart)


def _names(flats: list[Flat]) -> list[str]:
    """The algorithm of each, with the keys in which it differs from others of its kind, or from all in its data."""
    names = []
    for flat in flats:
        rivals = [other for other in flats if other["algorithm.name"] == flat["algorithm.name"]]
        said = [key for key in flat if any(other.get(key) != flat[key] for other in rivals)]
        said += [key for key in ALWAYS_SAID if key not in said and any(other[key] != flat[key] for other in flats)]
        settings = ";".join(f"{key}={flat[key]}" for key in said if key != "algorithm.name")
        names.append(f"{flat['algorithm.name']}[{settings}]" if settings else str(flat["algorithm.name"]))
    return names


def _folder_names(groups: list[list[Path]]) -> list[str]:
    """Each method's first run, by as much of its path as tells it from the others."""
    firsts = [sorted(runs)[0].resolve() for runs in groups]
    for length in range(1, max(len(first.parts) for first in firsts) + 1):
        names = ["/".join(first.parts[-length:]) for first in firsts]
        if len(set(names)) == len(names):
            break
    return [f"{name} + {len(runs) - 1}" if len(runs) > 1 else name for name, runs in zip(names, groups, strict=True)]
