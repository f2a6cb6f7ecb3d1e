"""Prediction on a CPU: images in blocks that fit into its caches against all images of a batch at once."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import torch
import typer

from benchmarks.command_line import RoundsOption, run, show
from benchmarks.result import BenchmarkResult, Column
from benchmarks.timing import interleaved, tell
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.backbones.blocks import block_size, in_blocks
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.errors import NPMatchError

# Networks that the defaults choose, and a common larger one, with the side of the images that they see.
NETWORKS = [
    (BackboneConfig("timm:tf_efficientnet_lite0", input_size=128), 128),
    (BackboneConfig("timm:resnet18"), 160),
    (BackboneConfig("wrn-28-2"), 32),
    (BackboneConfig("cnn", width=48, stem_stride=2), 28),
]
ALL, BLOCKS = "all at once", "in blocks"
COLUMNS = [
    Column("network", "network"),
    Column("block", "images in a block"),
    Column("all", "all at once, images/s", "{:,.0f}"),
    Column("blocks", "in blocks, images/s", "{:,.0f}"),
]


@torch.no_grad()
def bench_blocks(images: int = 512, rounds: int = 5) -> BenchmarkResult:
    """Times every network on a batch of random images, on the CPU."""
    rows: list[dict[str, Any]] = []
    ratios = {}
    for config, side in NETWORKS:
        network = make_backbone(config, 3, load=False).eval()
        x = torch.randn(images, 3, side, side)
        whole = getattr(network, "network", network)  # without the blocks of a network that scales its images
        turns = {ALL: lambda net=whole, x=x: net(x), BLOCKS: lambda net=whole, x=x: in_blocks(net, x)}
        speed = {way: images / seconds for way, seconds in interleaved(turns, "cpu", rounds).items()}
        name = f"{config.name}, {side} pixels"
        tell(f"{name}: {speed[ALL]:,.0f} images/s at once, {speed[BLOCKS]:,.0f} in blocks")
        rows.append({"network": name, "block": block_size(side), "all": speed[ALL], "blocks": speed[BLOCKS]})
        ratios[f"{name}: in blocks / at once"] = speed[BLOCKS] / speed[ALL]
    about = f"Features of {images} images, without gradient, on {torch.get_num_threads()} threads"
    return BenchmarkResult(name="blocks", about=about, columns=COLUMNS, rows=rows, ratios=ratios, device="cpu")


def main(
    images: Annotated[int, typer.Option("--images", min=1, help="Number of images in a batch.")] = 512,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prediction on a CPU, images in blocks against all at once."""
    if check_device(device) not in (None, "cpu"):
        raise NPMatchError(f"--device {device}: a GPU takes all images at once; leave the option out")
    show(bench_blocks(images, rounds), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
