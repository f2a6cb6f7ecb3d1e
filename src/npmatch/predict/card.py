"""The model card, README.md of a saved model: classes, data, scores, calibration, how to load it, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SHOWN_CLASSES = 50
SCORES = {  # key → heading, format
    "error": ("error", "{:.2f} %"),
    "ece": ("ECE", "{:.2f} %"),
    "uce": ("UCE", "{:.2f} %"),
    "nll": ("NLL", "{:.3f}"),
    "brier": ("Brier", "{:.3f}"),
    "n": ("images", "{:.0f}"),
}


@dataclass(frozen=True)
class ModelFacts:
    """The facts that a model card states."""

    algorithm: str
    backbone: str
    class_names: tuple[str, ...]
    channels: int
    side: int  # pixels: size of its input images
    num_labeled: int
    num_unlabeled: int | None = None  # None: unknown
    data: str | None = None  # name of the data source; None: unknown
    scores: Mapping[str, float] = field(default_factory=dict)  # on held-out images; empty: not measured
    temperature: float | None = None
    calibration_labels: int = 0  # number of held-out labels the temperature was fitted on
    version: str = ""  # of npmatch
    weights: str | None = None  # the pretrained weights that training started from; None: it started from scratch
    licence: str | None = None  # of these weights; None: unknown


def model_card(facts: ModelFacts, name: str) -> str:
    """The text of the model card; `name` is `user/name` on the hub, or a folder's name."""
    sections = [
        f"---\n{front_matter(facts, name)}\n---",
        f"# {name}",
        f"An image classifier with uncertainty, trained with npmatch {facts.version} from few labelled and many "
        f"unlabelled images: algorithm {code(facts.algorithm)}, network {code(facts.backbone)}.",
        f"## Classes\n\n{classes(facts.class_names)}",
        f"## Data and labels\n\n{data(facts)}",
        f"## Pretrained weights\n\n{weights(facts)}",
        f"## Results\n\n{results(facts.scores)}",
        f"## Calibration\n\n{calibration(facts)}",
        f"## How to load it\n\n{loading(name)}",
        USE,
        limits(facts),
    ]
    return "\n\n".join(sections) + "\n"


def front_matter(facts: ModelFacts, name: str) -> str:
    """The YAML metadata that the hub reads."""
    from huggingface_hub import EvalResult, ModelCardData

    source = facts.data or "unknown"
    measured = {"accuracy": 1 - facts.scores["error"] / 100} if "error" in facts.scores else {}
    measured |= {key: facts.scores[key] / 100 for key in ("ece", "uce") if key in facts.scores}
    rows = [
        EvalResult(
            task_type="image-classification",
            dataset_type=source,
            dataset_name=source,
            metric_type=metric,
            metric_value=round(float(value), 4),
        )
        for metric, value in measured.items()
    ]
    metadata = ModelCardData(
        library_name="npmatch",
        pipeline_tag="image-classification",
        tags=["image-classification", "semi-supervised-learning", "uncertainty", facts.algorithm.replace(":", "-")],
        model_name=name if rows else None,
        eval_results=rows or None,
    )
    return str(metadata.to_yaml()).strip()


def classes(names: tuple[str, ...]) -> str:
    """The class names, each as inline code: they come from a user's folders and may contain any text."""
    shown = ", ".join(code(name) for name in names[:SHOWN_CLASSES])
    more = f" and {len(names) - SHOWN_CLASSES} more, in config.json" if len(names) > SHOWN_CLASSES else ""
    return f"{len(names)}: {shown}{more}."


def code(text: str) -> str:
    """The text as inline code, without the characters that could end it."""
    plain = " ".join(text.split()).replace("`", "ˋ").replace("<", "‹").replace(">", "›")
    return f"`{plain}`"


def data(facts: ModelFacts) -> str:
    """A sentence on the source, the numbers of labelled and unlabelled images, and their format."""
    source = "Images in memory" if facts.data is None else f"The data set `{facts.data}`"
    if facts.data in ("folder", "csv"):
        source = "Images of the author's own"
    unlabeled = "" if facts.num_unlabeled is None else f" and {facts.num_unlabeled:,} images used without labels"
    kind = "colour" if facts.channels == 3 else "grey"
    return (
        f"{source}: {facts.num_labeled:,} labels{unlabeled}. Images are {kind}; their middle square is scaled to "
        f"{facts.side} × {facts.side} pixels."
    )


def weights(facts: ModelFacts) -> str:
    """A sentence on the weights that training started from, and their licence."""
    if facts.weights is None:
        return "None: training started from random weights."
    terms = "their licence is not known here" if facts.licence is None else f"licence {code(facts.licence)}"
    return f"Training started from the weights {code(facts.weights)} of this network; {terms}."


def results(scores: Mapping[str, float]) -> str:
    """The table of scores, or a note that nothing was measured."""
    if "error" not in scores:
        return "Not measured: there were no test images."
    cells = {heading: form.format(scores[key]) for key, (heading, form) in SCORES.items() if key in scores}
    rows = (" | ".join(cells), "|".join("---" for _ in cells), " | ".join(cells.values()))
    table = "\n".join(f"| {row} |" for row in rows)
    return (
        f"{table}\n\nMeasured with the averaged weights at the end of training, on images that were not trained on. "
        "ECE is the gap between confidence and accuracy, UCE the gap between uncertainty and error."
    )


def calibration(facts: ModelFacts) -> str:
    """The temperature and the number of labels it was fitted on, if there is one."""
    if facts.temperature is None:
        return "None: the probabilities are the model's own."
    return (
        f"Temperature {facts.temperature:.3f}, fitted on {facts.calibration_labels:,} labels that were used neither "
        "for training nor for testing."
    )


def loading(name: str) -> str:
    """Python code that loads the model and predicts an image."""
    return f"""```python
import npmatch

model = npmatch.Classifier.from_pretrained({name!r})  # a folder, or user/name on the hub
prediction = model.predict(["image.jpg"])
model.class_names[prediction.label[0]], prediction.confidence[0], prediction.entropy[0]  # entropy: nats
```

The weights are safetensors; nothing is unpickled."""


USE = """## Intended use

Sorting images like those it was trained on into the classes above. Uncertain predictions should be left to a person:
the entropy of a prediction ranks them."""


def limits(facts: ModelFacts) -> str:
    """The section on what the model must not be used for."""
    is_measured = "error" in facts.scores
    scope = "the scores above hold for images like its test images" if is_measured else "its error is not known"
    return f"""## Limits

- An image of none of these classes is still assigned to one of them; high uncertainty is a hint, not a proof.
- It was trained with {facts.num_labeled:,} labels; all else it has learned comes from unlabelled images. Wrong labels
  and rare classes matter more than usual.
- There is no guarantee for images from elsewhere (another camera, another season): {scope}.
- It has not been examined for fairness, and is not made for decisions about people."""
