"""Embeddings of class names, close to one another where the names have similar meanings; used by SemCo.

The embedded file covers the class names of the built-in data sources. For other classes a user gives a file: an
.npz with the arrays `names` (N) and `vectors` (N D), or text with a word and its numbers on each line, as word2vec,
GloVe and ConceptNet Numberbatch are published.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from npmatch.errors import NPMatchError

Table = dict[str, "np.ndarray[tuple[int], np.dtype[np.float32]]"]  # normalised name → D


def load_label_embeddings(class_names: Sequence[str], path: str | None = None) -> Tensor:
    """K D, float32: one vector for each class name, from the file at `path` or from the embedded one."""
    wanted = [normalize_name(name) for name in class_names]
    if path is None:
        with as_file(files("npmatch") / "assets" / "label_embeddings.npz") as embedded:
            table = _read_npz(embedded)
    elif path.lower().endswith(".npz"):
        table = _read_npz(Path(path).expanduser())
    else:
        table = _read_text(Path(path).expanduser(), set(wanted) | {word for name in wanted for word in name.split()})
        # A name of several words without a vector of its own gets the mean of the vectors of its words.
        for name in wanted:
            found = [table[word] for word in name.split() if word in table]
            if name not in table and found:
                table[name] = np.mean(found, axis=0)
    missing = [name for name, key in zip(class_names, wanted, strict=True) if key not in table]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NPMatchError(
            f"class '{missing[0]}'{others} has no embedding in {path or 'the embedded file'}; set "
            "algorithm.label_embeddings to a file of word vectors that covers the class names"
        )
    return torch.from_numpy(np.stack([table[name] for name in wanted]))


def normalize_name(name: str) -> str:
    """The name in lower case with single spaces: 'Aquarium_Fish' and 'aquarium-fish' give 'aquarium fish'."""
    return " ".join(re.split(r"[\s_/\-]+", name.strip().lower())).strip()


def _read_npz(path: Path) -> Table:
    """The table in an .npz; an array of objects is refused, as it is a pickle, which can run any code."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names, vectors = arrays["names"], np.asarray(arrays["vectors"], dtype=np.float32)
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise NPMatchError(f"{path}: not an .npz with the arrays names (text) and vectors (numbers)") from error
    if names.ndim != 1 or vectors.ndim != 2 or len(names) != len(vectors) or names.dtype.kind != "U":
        raise NPMatchError(f"{path}: names must be N texts and vectors N × D numbers")
    if not np.isfinite(vectors).all():
        raise NPMatchError(f"{path}: vectors must be finite")
    return {normalize_name(str(name)): vector for name, vector in zip(names, vectors, strict=True)}


def _read_text(path: Path, wanted: set[str]) -> Table:
    """The vectors of wanted words, the first of each word; a first line 'count dimension' is skipped."""
    table: Table = {}
    size: int | None = None
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                word, _, rest = line.strip().partition(" ")
                if number == 1 and word.isdigit() and rest.strip().isdigit():
                    continue
                key = normalize_name(word)
                if key not in wanted or key in table:
                    continue
                try:
                    vector = np.array(rest.split(), dtype=np.float32)
                except ValueError:
                    raise NPMatchError(f"{path}, line {number}: expected a word and numbers") from None
                size = size or len(vector)
                if len(vector) != size or size == 0 or not np.isfinite(vector).all():
                    raise NPMatchError(
                        f"{path}, line {number}: expected {size or 'some'} finite numbers after the word"
                    )
                table[key] = vector
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
    return table
