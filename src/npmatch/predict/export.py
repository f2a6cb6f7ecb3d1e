"""Export of a trained model to one ONNX file, whose outputs are compared with `predict` before it is written.

The file takes uint8 images of the size the model stores. The centre crop, the normalisation, the backbone, the head
with its stored latent samples, the banks' means and the temperature are in the graph: it needs nothing but a runtime.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.heads import ContextHead, MCDropoutModel, NeuralProcessHead
from npmatch.predict.batches import as_network_input
from npmatch.predict.classifier import Classifier
from npmatch.predict.saved import ModelSpec
from npmatch.types import Prediction
from npmatch.version import __version__

OPSET = 20
TOLERANCE = 1e-4  # largest difference from `predict` that is accepted
BATCH_SIZES = (1, 2, 7, 16)  # at which the file is compared with `predict`


class ImagesToPrediction(nn.Module):
    """Everything that `npmatch predict` computes from decoded images, as one module."""

    def __init__(self, classifier: Classifier) -> None:
        """Shares the classifier's weights."""
        super().__init__()
        self.classifier, self.model = classifier, classifier.model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """uint8 N C H W → the tensors of `outputs`."""
        prediction = self.model(as_network_input(images, self.classifier.spec, images.device))
        return tuple(outputs(calibrated(self.classifier, prediction)).values())


def calibrated(classifier: Classifier, prediction: Prediction) -> Prediction:
    """The prediction at the run's temperature, if it has one, as `npmatch predict` writes it."""
    return prediction if classifier.calibration is None else classifier.calibration.apply(prediction)


def outputs(prediction: Prediction) -> dict[str, Tensor]:
    """Probabilities N K, entropy N and, if the model estimates them, disagreement N and outlier N, by name."""
    p = prediction
    named = {"probabilities": p.probs, "entropy": p.entropy, "disagreement": p.disagreement, "outlier": p.outlier}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def export_onnx(classifier: Classifier, path: Path, check: bool = True) -> float | None:
    """Writes the file and returns the largest difference from `predict`, or None with `check=False`."""
    require("onnx", "onnxscript", *(["onnxruntime"] if check else []))
    content = onnx_bytes(classifier)
    difference = largest_difference(content, classifier) if check else None
    if difference is not None and not difference <= TOLERANCE:  # written so that NaN fails too
        raise NPMatchError(
            f"{path}: the exported model differs from predict by {difference:.1e}, more than {TOLERANCE:.0e}; nothing "
            "was written. Please report the backbone and the versions of torch, onnxscript and onnxruntime"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be written ({error.strerror}); choose another -o") from error
    return difference


def require(*packages: str) -> None:
    """Refuses to go on if a package is missing, and says how to install it."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise NPMatchError(f"export: needs {', '.join(missing)}; run pip install 'npmatch[export]'")


def onnx_bytes(classifier: Classifier) -> bytes:
    """The content of the ONNX file. It holds no date and no path, so equal models give equal files."""
    if classifier.device.type != "cpu":
        raise NPMatchError("export: load the model with device='cpu'; the file runs on any device")
    graph, spec = ImagesToPrediction(classifier).eval(), classifier.spec
    images = torch.zeros(2, spec.channels, spec.stored_side, spec.stored_side, dtype=torch.uint8)
    with torch.no_grad(), silence():
        # The first call also draws what is then kept, such as dropout masks.
        names = outputs(classifier.predict(images))
        try:
            program = torch.onnx.export(
                graph,
                (images,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["images"],
                output_names=list(names),
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                verbose=False,
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise NPMatchError(f"export: torch cannot turn this backbone into an ONNX graph ({reason})") from error
    assert program is not None
    proto = program.model_proto
    strip_source_locations(proto.graph)
    proto.producer_name, proto.producer_version = "npmatch", __version__
    for key, value in metadata(classifier).items():
        proto.metadata_props.add(key=key, value=value)
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except ValueError as error:
        raise NPMatchError("export: the model is over 2 GB, more than one ONNX file can hold") from error


@contextmanager
def silence() -> Iterator[None]:
    """Suppresses the exporter's warnings and log messages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def strip_source_locations(graph: Any) -> None:
    """Removes the exporter's notes on the source file and line that each node comes from."""
    for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def metadata(classifier: Classifier) -> dict[str, str]:
    """The file's metadata: all that is needed to use it without npmatch. Lists are JSON."""
    spec = classifier.spec
    side, crop, kind = spec.stored_side, spec.side, "RGB" if spec.channels == 3 else "grey"
    return {
        "class_names": json.dumps(spec.class_names, ensure_ascii=False),
        "input": f"images: uint8, N × {spec.channels} × {side} × {side} (N C H W, {kind}), values 0–255; the middle "
        f"{crop} × {crop} and the normalisation are taken inside",
        "outputs": "probabilities: N × K in the order of class_names; entropy: N, uncertainty in nats; disagreement, "
        "if present: N, nats, mutual information between the samples; outlier, if present: N, probability of being of "
        "no known class",
        "image_size": str(side),
        "channels": str(spec.channels),
        "mean": json.dumps(spec.mean),
        "std": json.dumps(spec.std),
        "temperature": temperature(classifier),
        "algorithm": spec.algorithm,
        "randomness": randomness(classifier.model),
        "npmatch_version": __version__,
    }


def temperature(classifier: Classifier) -> str:
    """The temperature in the graph, for the metadata."""
    calibration = classifier.calibration
    if calibration is None or calibration.temperature is None:
        return "none: the probabilities are the model's own"
    return f"{calibration.temperature:.4f}, applied inside; fitted on {calibration.n} held-out labels"


def randomness(model: nn.Module) -> str:
    """Why the outputs are deterministic, for the metadata."""
    if isinstance(model, MCDropoutModel):
        return f"none: {model.samples} passes with stored dropout masks"
    if isinstance(head := model.head, NeuralProcessHead):
        return f"none: {head.samples} stored draws of the latent"
    if isinstance(head, ContextHead):
        return f"none: {head.samples} stored resamplings of the labelled images"
    return "none"


def largest_difference(content: bytes, classifier: Classifier) -> float:
    """Largest difference between the outputs of the file in onnxruntime and of `predict`, over several batch sizes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    worst = 0.0
    for images in check_images(classifier.spec):
        exported = session.run(None, {"images": images.numpy()})
        expected = outputs(calibrated(classifier, classifier.predict(images))).values()
        differences = [np.abs(a - b.numpy()).max() for a, b in zip(exported, expected, strict=True)]
        worst = float(np.max([worst, *differences]))  # np.max, unlike max, propagates NaN
    return worst


def check_images(spec: ModelSpec) -> Iterator[Tensor]:
    """Fixed batches of patterns from coarse to fine; noise alone would all be predicted as one class."""
    generator = torch.Generator().manual_seed(0)
    for size in BATCH_SIZES:
        patterns = []
        for number in range(size):
            grid = min(2 ** (number % 6), spec.stored_side)
            coarse = torch.rand(1, spec.channels, grid, grid, generator=generator)
            patterns.append(F.interpolate(coarse, size=(spec.stored_side,) * 2, mode="bilinear"))
        yield torch.cat(patterns).mul(255).round().to(torch.uint8)
