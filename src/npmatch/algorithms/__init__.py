"""One file per paper, each readable alone, none inheriting another. A user's own is given as package.module:Class."""

from __future__ import annotations

from npmatch.algorithms.adamatch import AdaMatch
from npmatch.algorithms.base import Algorithm, Update
from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.comatch import CoMatch
from npmatch.algorithms.crmatch import CRMatch
from npmatch.algorithms.dash import Dash
from npmatch.algorithms.defixmatch import DeFixMatch
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.flexmatch import FlexMatch
from npmatch.algorithms.freematch import FreeMatch
from npmatch.algorithms.iomatch import IOMatch
from npmatch.algorithms.meanteacher import MeanTeacher
from npmatch.algorithms.mixmatch import MixMatch
from npmatch.algorithms.mpl import MetaPseudoLabels
from npmatch.algorithms.npmatch import NPMatch
from npmatch.algorithms.openmatch import OpenMatch
from npmatch.algorithms.pimodel import PiModel
from npmatch.algorithms.pseudolabel import PseudoLabel
from npmatch.algorithms.regmixmatch import RegMixMatch
from npmatch.algorithms.remixmatch import ReMixMatch
from npmatch.algorithms.semco import SemCo
from npmatch.algorithms.simmatch import SimMatch
from npmatch.algorithms.softmatch import SoftMatch
from npmatch.algorithms.ssb import SSB
from npmatch.algorithms.supervised import Supervised
from npmatch.algorithms.uda import UDA
from npmatch.algorithms.ups import UPS
from npmatch.algorithms.vat import VAT
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.user_code import import_name

ALGORITHMS: dict[str, type[Algorithm]] = {
    "supervised": Supervised,
    "fixmatch": FixMatch,
    "flexmatch": FlexMatch,
    "uda": UDA,
    "mixmatch": MixMatch,
    "remixmatch": ReMixMatch,
    "comatch": CoMatch,
    "semco": SemCo,
    "mpl": MetaPseudoLabels,
    "ups": UPS,
    "npmatch": NPMatch,
    "pseudolabel": PseudoLabel,
    "pimodel": PiModel,
    "meanteacher": MeanTeacher,
    "vat": VAT,
    "dash": Dash,
    "adamatch": AdaMatch,
    "simmatch": SimMatch,
    "freematch": FreeMatch,
    "softmatch": SoftMatch,
    "defixmatch": DeFixMatch,
    "crmatch": CRMatch,
    "regmixmatch": RegMixMatch,
    "openmatch": OpenMatch,
    "iomatch": IOMatch,
    "ssb": SSB,
}


def find_algorithm(name: str) -> type[Algorithm]:
    """The algorithm class called `name`, or a user's class given as package.module:Class."""
    if ":" not in name:
        if name not in ALGORITHMS:
            raise NoSuchChoiceError("algorithm", name, list(ALGORITHMS))
        return ALGORITHMS[name]
    found = import_name(name, "algorithm")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise NPMatchError(f"algorithm '{name}' is not a subclass of npmatch.Algorithm")
    return found


__all__ = [
    "ALGORITHMS",
    "SSB",
    "UDA",
    "UPS",
    "VAT",
    "AdaMatch",
    "Algorithm",
    "CRMatch",
    "CoMatch",
    "Dash",
    "DeFixMatch",
    "FixMatch",
    "FlexMatch",
    "FreeMatch",
    "IOMatch",
    "MeanTeacher",
    "MetaPseudoLabels",
    "MixMatch",
    "NPMatch",
    "OpenMatch",
    "PiModel",
    "PseudoLabel",
    "ReMixMatch",
    "RegMixMatch",
    "SemCo",
    "SimMatch",
    "SoftMatch",
    "Supervised",
    "Update",
    "check_algorithm",
    "find_algorithm",
]
