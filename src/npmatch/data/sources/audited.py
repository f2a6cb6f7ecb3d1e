"""audited.csv in a user's folder: images that were drawn to measure a model's error, and are not to be trained on.

It lies beside the images, because a run of its own, trained on the folder later, knows nothing of the run that was
measured. Labels of these images are faults of the listing until they are released.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from npmatch.data.sources.listing import Listing
from npmatch.data.sources.tables import read_rows
from npmatch.files import name_as_text, name_from_text, write_atomically

AUDITED = "audited.csv"


def read_audited(folder: Path) -> dict[str, str]:
    """Name of each image that is kept for an audit, relative to the folder → the run that is measured."""
    table = folder / AUDITED
    if not table.is_file():
        return {}
    return {name_from_text(cells["path"]): cells.get("run", "") for _, cells in read_rows(table, verbatim=True)}


def write_audited(folder: Path, names: Mapping[str, str]) -> None:
    """Writes the table, or removes it if no image is left in it."""
    table = folder / AUDITED
    if not names:
        table.unlink(missing_ok=True)
        return
    text = io.StringIO(newline="")
    csv.writer(text).writerows(
        [("path", "label", "run"), *((name_as_text(name), "", name_as_text(run)) for name, run in names.items())]
    )
    write_atomically(table, text.getvalue().encode())


def note_audited(listing: Listing) -> Listing:
    """The same listing, with a fault for each labelled image that is kept for an audit."""
    kept = read_audited(listing.root)
    for file in listing.files if kept else ():
        if file.part == "labeled" and file.name in kept:
            fault = f"{file.name} has a label, but was drawn for an audit and is kept out of training"
            remedy = f"npmatch audit {kept[file.name] or 'RUN'} --release FILE"
            listing.faults.append(f"{listing.root / AUDITED}: {fault}; remove the label, or release it: {remedy}")
    return listing
