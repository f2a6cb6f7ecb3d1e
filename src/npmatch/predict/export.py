"""A trained model as one ONNX file that says what `predict` says, checked before it is written.

The file takes uint8 images as the model stores them; the middle crop, the normalisation, the backbone, the head with
its stored latents and the banks' means are in the graph, so it needs nothing but a runtime.
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
from npmatch.heads import MCDropoutModel, NeuralProcessHead
from npmatch.predict.batches import as_network_input
from npmatch.predict.classifier import Classifier
from npmatch.predict.saved import ModelSpec
from npmatch.types import Prediction
from npmatch.version import __version__

OPSET = 20
TOLERANCE = 1e-4  # largest difference from `predict` that is let through
BATCHES = (1, 2, 7, 16)  # sizes at which the file is compared
OUTPUTS = ("probabilities", "entropy", "disagreement")


class ImagesToPrediction(nn.Module):
    """All that `npmatch predict` does from stored pixels on, as one function of tensors."""

    def __init__(self, classifier: Classifier) -> None:
        """Shares the classifier's weights."""
        super().__init__()
        self.classifier, self.model = classifier, classifier.model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """uint8 N C H W → probabilities N K, entropy N and, where the model samples, disagreement N."""
        prediction = self.model(as_network_input(images, self.classifier.spec, images.device))
        return outputs(calibrated(self.classifier, prediction))


def calibrated(classifier: Classifier, prediction: Prediction) -> Prediction:
    """The prediction at the run's temperature, where it has one, as `npmatch predict` gives it."""
    return prediction if classifier.calibration is None else classifier.calibration.apply(prediction)


def outputs(prediction: Prediction) -> tuple[Tensor, ...]:
    """The tensors of a prediction, in the order of OUTPUTS."""
    return tuple(t for t in (prediction.probs, prediction.entropy, prediction.disagreement) if t is not None)


def export_onnx(classifier: Classifier, path: Path, check: bool = True) -> float | None:
    """Writes the file and returns its largest difference from `predict`; None where it was not compared."""
    need("onnx", "onnxscript", *(["onnxruntime"] if check else []))
    content = onnx_bytes(classifier)
    difference = largest_difference(content, classifier) if check else None
    if difference is not None and not difference <= TOLERANCE:  # not <=: NaN is no agreement
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


def need(*packages: str) -> None:
    """One line where a package of the extra is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise NPMatchError(f"export: needs {', '.join(missing)}; run pip install 'npmatch[export]'")


def onnx_bytes(classifier: Classifier) -> bytes:
    """The file's content; it holds no time and no path, so equal models give equal files."""
    if classifier.device.type != "cpu":
        raise NPMatchError("export: load the model with device='cpu'; the file runs on any device")
    graph, spec = ImagesToPrediction(classifier).eval(), classifier.spec
    images = torch.zeros(2, spec.channels, spec.stored_side, spec.stored_side, dtype=torch.uint8)
    with torch.no_grad(), silence():
        names = OUTPUTS[: len(graph(images))]  # this call also draws what is drawn once, such as dropout's masks
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
    strip_traces(proto.graph)
    proto.producer_name, proto.producer_version = "npmatch", __version__
    for key, value in metadata(classifier).items():
        proto.metadata_props.add(key=key, value=value)
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except ValueError as error:
        raise NPMatchError("export: the model is over 2 GB, more than one ONNX file can hold") from error


@contextmanager
def silence() -> Iterator[None]:
    """Inside, the exporter's remarks about its own working are not shown."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def strip_traces(graph: Any) -> None:
    """Takes out the exporter's notes: where in whose files each node came from."""
    for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def metadata(classifier: Classifier) -> dict[str, str]:
    """What a stranger to npmatch must know to use the file; lists as JSON."""
    spec = classifier.spec
    side, shown, kind = spec.stored_side, spec.side, "RGB" if spec.channels == 3 else "grey"
    return {
        "class_names": json.dumps(spec.class_names, ensure_ascii=False),
        "input": f"images: uint8, N × {spec.channels} × {side} × {side} (N C H W, {kind}), values 0–255; the middle "
        f"{shown} × {shown} and the normalisation are taken inside",
        "outputs": "probabilities: N × K in the order of class_names; entropy: N, uncertainty in nats; disagreement, "
        "where there is one: N, nats, the part of it that is between the samples",
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
    """Whether the probabilities are calibrated."""
    found = classifier.calibration
    if found is None or found.temperature is None:
        return "none: the probabilities are the model's own"
    return f"{found.temperature:.4f}, applied inside; fitted on {found.n} held-out labels"


def randomness(model: nn.Module) -> str:
    """Why the file says the same every time."""
    if isinstance(model, MCDropoutModel):
        return f"none: {model.samples} passes with stored dropout masks"
    if isinstance(head := model.head, NeuralProcessHead):
        return f"none: {head.samples} stored draws of the latent"
    return "none"


def largest_difference(content: bytes, classifier: Classifier) -> float:
    """Between the file's outputs under onnxruntime and `predict`'s, over batches of several sizes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    worst = 0.0
    for images in check_images(classifier.spec):
        found = session.run(None, {"images": images.numpy()})
        wanted = outputs(calibrated(classifier, classifier.predict(images)))
        differences = [np.abs(a - b.numpy()).max() for a, b in zip(found, wanted, strict=True)]
        worst = float(np.max([worst, *differences]))  # np.max and not max: NaN must not be lost
    return worst


def check_images(spec: ModelSpec) -> Iterator[Tensor]:
    """Batches of patterns from coarse to fine, always the same: noise alone would look like one class."""
    generator = torch.Generator().manual_seed(0)
    for size in BATCHES:
        patterns = []
        for number in range(size):
            grid = min(2 ** (number % 6), spec.stored_side)
            coarse = torch.rand(1, spec.channels, grid, grid, generator=generator)
            patterns.append(F.interpolate(coarse, size=(spec.stored_side,) * 2, mode="bilinear"))
        yield torch.cat(patterns).mul(255).round().to(torch.uint8)
