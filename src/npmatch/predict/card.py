"""README.md of a model that is handed on: what it is, how it was made, how good it is, and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SHOWN_CLASSES = 50
SCORES = {  # key → heading, form
    "error": ("error", "{:.2f} %"),
    "ece": ("ECE", "{:.2f} %"),
    "uce": ("UCE", "{:.2f} %"),
    "nll": ("NLL", "{:.3f}"),
    "brier": ("Brier", "{:.3f}"),
    "n": ("images", "{:.0f}"),
}


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model."""

    algorithm: str
    backbone: str
    class_names: tuple[str, ...]
    channels: int
    side: int  # of the images it takes
    num_labeled: int
    num_unlabeled: int | None = None  # None: not known
    data: str | None = None  # the source's name; None: not known
    scores: Mapping[str, float] = field(default_factory=dict)  # on held-out images; empty: not measured
    temperature: float | None = None
    calibration_labels: int = 0  # held-out labels the temperature was fitted on
    version: str = ""  # of npmatch


def model_card(facts: ModelFacts, name: str) -> str:
    """The card of a model that is called `name` (`user/name`, or a folder's)."""
    sections = [
        f"---\n{front_matter(facts, name)}\n---",
        f"# {name}",
        f"An image classifier that says how sure it is, trained with npmatch {facts.version} from few labels and many "
        f"images without one: algorithm {code(facts.algorithm)}, network {code(facts.backbone)}.",
        f"## Classes\n\n{classes(facts.class_names)}",
        f"## Data and labels\n\n{data(facts)}",
        f"## Results\n\n{results(facts.scores)}",
        f"## Calibration\n\n{calibration(facts)}",
        f"## How to load it\n\n{loading(name)}",
        USE,
        limits(facts),
    ]
    return "\n\n".join(sections) + "\n"


def front_matter(facts: ModelFacts, name: str) -> str:
    """The YAML that the hub reads."""
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
    found = ModelCardData(
        library_name="npmatch",
        pipeline_tag="image-classification",
        tags=["image-classification", "semi-supervised-learning", "uncertainty", facts.algorithm.replace(":", "-")],
        model_name=name if rows else None,
        eval_results=rows or None,
    )
    return str(found.to_yaml()).strip()


def classes(names: tuple[str, ...]) -> str:
    """The names, each as code: they come from a user's folders and may hold anything."""
    shown = ", ".join(code(name) for name in names[:SHOWN_CLASSES])
    more = f" and {len(names) - SHOWN_CLASSES} more, in config.json" if len(names) > SHOWN_CLASSES else ""
    return f"{len(names)}: {shown}{more}."


def code(text: str) -> str:
    """Text as a span of code that nothing in it can end."""
    plain = " ".join(text.split()).replace("`", "ˋ").replace("<", "‹").replace(">", "›")
    return f"`{plain}`"


def data(facts: ModelFacts) -> str:
    """Which images, and how many of them had a label."""
    source = "Images in memory" if facts.data is None else f"The data set `{facts.data}`"
    if facts.data in ("folder", "csv"):
        source = "Images of the author's own"
    unlabeled = "" if facts.num_unlabeled is None else f" and {facts.num_unlabeled:,} images used without their label"
    kind = "colour" if facts.channels == 3 else "grey"
    return (
        f"{source}: {facts.num_labeled:,} labels{unlabeled}. Images are {kind}, their middle square scaled to "
        f"{facts.side} × {facts.side} pixels."
    )


def results(scores: Mapping[str, float]) -> str:
    """A table, or that there is none."""
    shown = [(head, form.format(scores[key])) for key, (head, form) in SCORES.items() if key in scores]
    if "error" not in scores:
        return "Not measured: there were no test images."
    rows = (
        " | ".join(head for head, _ in shown),
        "|".join("---" for _ in shown),
        " | ".join(cell for _, cell in shown),
    )
    table = "\n".join(f"| {row} |" for row in rows)
    return (
        f"{table}\n\nOf the averaged model at the end of training, on images that were not trained on. ECE, UCE: how "
        "far confidence and uncertainty are from the accuracy and the error they promise."
    )


def calibration(facts: ModelFacts) -> str:
    """Whether there is a temperature, and from how many labels."""
    if facts.temperature is None:
        return "None beyond training: the probabilities are the model's own."
    return (
        f"Temperature {facts.temperature:.3f}, fitted on {facts.calibration_labels:,} labels that were neither trained "
        "nor tested on."
    )


def loading(name: str) -> str:
    """The lines to type."""
    return f"""```python
import npmatch

model = npmatch.Classifier.from_pretrained({name!r})  # a folder, or user/name on the hub
prediction = model.predict(["image.jpg"])
model.class_names[prediction.label[0]], prediction.confidence[0], prediction.entropy[0]  # entropy: nats
```

The weights are safetensors; nothing is unpickled."""


USE = """## Intended use

Sorting images of the kind it was trained on into the classes above, with the uncertain ones left to a person: the
entropy of a prediction ranks them."""


def limits(facts: ModelFacts) -> str:
    """What it must not be taken for."""
    known = "error" in facts.scores
    measured = "the figures above hold for images like its test images" if known else "its error is not known"
    return f"""## Limits

- An image of no class above is still put into one of them; high uncertainty is a hint of it, no proof.
- It was given {facts.num_labeled:,} labels; the rest it concluded from images without one. Mistakes in the labels, and
  classes that are rare among the images, weigh more than usual.
- On images from elsewhere (another camera, another season) nothing is promised: {measured}.
- Nobody has examined it for fairness; it is not made for decisions about people."""
