"""Every number of the configuration has bounds at its field; a value outside is an error of one line with the key."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

from npmatch.algorithms import ALGORITHMS, Algorithm
from npmatch.augment import AugmentConfig
from npmatch.backbones import BackboneConfig
from npmatch.config.recipes import RECIPES, recipe_layer
from npmatch.config.tree import Config, make_config, parse_overrides
from npmatch.data.config import DataConfig
from npmatch.errors import NPMatchError
from npmatch.training.config import TrainingConfig

GROUPS = {"data": DataConfig, "augment": AugmentConfig, "backbone": BackboneConfig, "training": TrainingConfig}
WITHOUT_BOUNDS = {"seed"}  # any integer will do: draws.mix takes its last 64 bits
QUICK = settings(max_examples=300, deadline=None)


class Number(NamedTuple):
    """A key that takes a number, or several of one kind."""

    algorithm: str
    key: str
    schema: dict[str, Any]  # JSON's, of one number
    count: int | None  # of numbers in a tuple

    def value(self, number: float) -> Any:
        return number if self.count is None else [number] * self.count

    @property
    def kind(self) -> type:
        return int if self.schema["type"] == "integer" else float

    @property
    def lowest(self) -> float:
        if "minimum" in self.schema:
            return self.kind(self.schema["minimum"])
        low = self.schema["exclusiveMinimum"]
        return low + 1 if self.kind is int else math.nextafter(low, math.inf)

    @property
    def highest(self) -> float:
        if "maximum" in self.schema:
            return self.kind(self.schema["maximum"])
        return math.nextafter(self.schema["exclusiveMaximum"], -math.inf)


def numbers_of(algorithm: str, prefix: str, config: type) -> Iterator[Number]:
    hints = get_type_hints(config, include_extras=True)
    for field in dataclasses.fields(config):
        key, hint = prefix + field.name, hints[field.name]
        if key == "algorithm" or dataclasses.is_dataclass(hint):
            continue
        schema = TypeAdapter(hint).json_schema()
        parts = schema.get("anyOf") or schema.get("prefixItems") or [schema]
        count = len(parts) if "prefixItems" in schema else None
        assert count is None or all(part == parts[0] for part in parts), key
        for part in parts[:1] if count else parts:
            if part["type"] in ("integer", "number"):
                yield Number(algorithm, key, part, count)


NUMBERS = [
    *numbers_of("npmatch", "", Config),
    *(number for group, config in GROUPS.items() for number in numbers_of("npmatch", f"{group}.", config)),
    *(number for name, cls in ALGORITHMS.items() for number in numbers_of(name, "algorithm.", cls.Config)),
]
BOUNDED = [number for number in NUMBERS if number.key not in WITHOUT_BOUNDS]


def make(number: Number, value: Any) -> Config:
    return make_config({"algorithm.name": number.algorithm}, {number.key: value})


def test_every_number_has_a_smallest_and_a_largest_value():
    assert {"seed", "training.batch", "augment.crop_scale", "algorithm.max_std"} <= {number.key for number in NUMBERS}
    unbounded = {
        number.key
        for number in NUMBERS
        if not {"minimum", "exclusiveMinimum"} & number.schema.keys()
        or not {"maximum", "exclusiveMaximum"} & number.schema.keys()
    }
    assert unbounded == WITHOUT_BOUNDS


def test_a_seed_is_any_integer():
    for seed in (-1, 0, 10**30):
        assert make_config({"seed": str(seed)}).seed == seed


@QUICK
@given(st.sampled_from(BOUNDED), st.data())
def test_a_number_outside_is_refused_by_name_in_one_line(number, data):
    if number.kind is int:
        outside = st.integers(max_value=number.lowest - 1) | st.integers(min_value=number.highest + 1)
    else:
        below, above = math.nextafter(number.lowest, -math.inf), math.nextafter(number.highest, math.inf)
        outside = st.floats(max_value=below) | st.floats(min_value=above) | st.just(math.nan)
    value = data.draw(outside)
    for form in (number.value(value), str(value) if number.count is None else ",".join([str(value)] * number.count)):
        with pytest.raises(NPMatchError) as problem:
            make(number, form)
        line = str(problem.value)
        assert line.startswith(f"{number.key}={form}: must be ")
        assert "\n" not in line


@QUICK
@given(st.sampled_from(BOUNDED), st.data())
def test_a_number_inside_is_taken(number, data):
    strategy = st.integers if number.kind is int else st.floats
    value = data.draw(strategy(number.lowest, number.highest))
    taken = make(number, number.value(value)).flat()[number.key]
    assert taken == value if number.count is None else taken == (value,) * number.count


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_recipes_and_presets_are_within_the_bounds(algorithm):
    name = {"algorithm.name": algorithm}
    layers = [{}, *(recipe_layer(recipe, algorithm) for recipe in RECIPES)]
    presets = [{}, *({"preset": preset} for preset in ALGORITHMS[algorithm].presets)]
    for layer in layers:
        for preset in presets:
            config = make_config({**layer, **name}, preset)
            assert make_config({}, config.flat()) == config  # make_config checks defaults only if they are given


# Values that the meaning of each quantity rules out, stated here independently of the annotations.
NEVER = {
    "npmatch": """
        training.iterations=0 training.batch=0 training.batch=100000000000000000000000 training.unlabeled_ratio=0
        training.learning_rate=0 training.learning_rate=1e308 training.momentum=-0.1 training.momentum=1.1
        training.weight_decay=-1e-9 training.clip=0 training.ema=-0.1 training.ema=1 training.max_bad_steps=0
        training.log_every=0 training.eval_every=0 training.checkpoint_every=0 training.eval_batch=0
        backbone.width=0 backbone.stem_stride=0 backbone.norm_momentum=-0.1 backbone.norm_momentum=1.1
        augment.padding=-1 augment.size=0 augment.operations=-1 augment.cutout=-0.1 augment.cutout=1.1
        augment.crop_scale=0,1 augment.crop_scale=0.5,1.1
        data.labels=0 data.image_size=0 data.workers=-1 data.resident_share=-0.1 data.resident_share=1.1
        data.foreign_share=-0.1 data.foreign_share=1 data.validation=-0.1
        algorithm.samples=0 algorithm.bank=0 algorithm.width=0 algorithm.confidence=-0.1 algorithm.confidence=1.1
        algorithm.max_entropy=-0.1 algorithm.unlabeled_weight=-1 algorithm.divergence_weight=-1
        algorithm.alpha=-0.1 algorithm.alpha=1.1 algorithm.fairness_weight=-1 algorithm.decay=1 algorithm.window=0
        algorithm.gate=flexmatch algorithm.alignment=batch algorithm.known_share=-0.1 algorithm.known_share=1.1
    """,
    "fixmatch": "algorithm.confidence=-0.1 algorithm.confidence=1.1 algorithm.unlabeled_weight=-1",
    "flexmatch": "algorithm.confidence=-0.1 algorithm.confidence=1.1 algorithm.unlabeled_weight=-1",
    "uda": "algorithm.temperature=0 algorithm.confidence=1.1 algorithm.unlabeled_weight=-1",
    "mixmatch": "algorithm.temperature=0 algorithm.mixup=0 algorithm.unlabeled_weight=-1 algorithm.ramp=1.1",
    "remixmatch": """
        algorithm.temperature=0 algorithm.mixup=0 algorithm.window=0 algorithm.ramp=-0.1 algorithm.ramp=1.1
        algorithm.unlabeled_weight=-1 algorithm.strong_weight=-1 algorithm.rotation_weight=-1
    """,
    "comatch": """
        algorithm.embedding=0 algorithm.temperature=0 algorithm.confidence=1.1 algorithm.graph_threshold=1.1
        algorithm.smoothing=1.1 algorithm.window=0 algorithm.bank=0 algorithm.unlabeled_weight=-1
        algorithm.contrastive_weight=-1
    """,
    "semco": """
        algorithm.confidence=1.1 algorithm.similarity=-1.1 algorithm.similarity=1.1 algorithm.unlabeled_weight=-1
        algorithm.semantic_weight=-1 algorithm.group_distance=0 algorithm.group_distance=2.1 algorithm.hidden=0
    """,
    "mpl": """
        algorithm.temperature=0 algorithm.confidence=1.1 algorithm.uda_weight=-1 algorithm.uda_ramp=1.1
        algorithm.label_smoothing=1.1 algorithm.baseline_decay=1.1 algorithm.finetune=1.1
    """,
    "ups": """
        algorithm.samples=0 algorithm.dropout=-0.1 algorithm.dropout=1 algorithm.confidence=1.1 algorithm.max_std=-0.1
        algorithm.negative_confidence=1.1 algorithm.negative_max_std=-0.1 algorithm.unlabeled_weight=-1
        algorithm.negative_weight=-1
    """,
    "dash": """
        algorithm.temperature=0 algorithm.warm_up=-0.1 algorithm.warm_up=1.1 algorithm.interval=0
        algorithm.interval=1.1 algorithm.decay=0.9 algorithm.min_threshold=-0.1 algorithm.unlabeled_weight=-1
    """,
    "adamatch": """
        algorithm.relative_confidence=-0.1 algorithm.relative_confidence=1.1 algorithm.decay=1 algorithm.window=0
        algorithm.unlabeled_weight=-1 algorithm.ramp=-0.1 algorithm.ramp=1.1
    """,
    "freematch": """
        algorithm.decay=-0.1 algorithm.decay=1 algorithm.min_threshold=-0.1 algorithm.max_threshold=1.1
        algorithm.unlabeled_weight=-1 algorithm.fairness_weight=-1
    """,
    "defixmatch": "algorithm.confidence=-0.1 algorithm.confidence=1.1 algorithm.unlabeled_weight=-1",
    "softmatch": "algorithm.decay=-0.1 algorithm.decay=1 algorithm.sigmas=0 algorithm.unlabeled_weight=-1",
    "simmatch": """
        algorithm.embedding=0 algorithm.temperature=0 algorithm.confidence=1.1 algorithm.smoothing=1.1
        algorithm.window=0 algorithm.momentum=1.1 algorithm.warm_up=1.1 algorithm.unlabeled_weight=-1
        algorithm.instance_weight=-1
    """,
    "crmatch": """
        algorithm.confidence=1.1 algorithm.unlabeled_weight=-1 algorithm.distance_weight=-1
        algorithm.rotation_weight=-1
    """,
    "regmixmatch": """
        algorithm.decay=1 algorithm.mixing_confidence=1.1 algorithm.mixing_alpha=0 algorithm.labeled_mixing=0
        algorithm.class_aware_alpha=0 algorithm.unlabeled_weight=-1 algorithm.fairness_weight=-1
    """,
    "pseudolabel": "algorithm.confidence=1.1 algorithm.unlabeled_weight=-1 algorithm.ramp=1.1",
    "pimodel": "algorithm.unlabeled_weight=-1 algorithm.ramp=-0.1 algorithm.ramp=1.1",
    "meanteacher": """
        algorithm.teacher_decay=-0.1 algorithm.teacher_decay=1.1 algorithm.unlabeled_weight=-1 algorithm.ramp=1.1
    """,
    "vat": """
        algorithm.radius=0 algorithm.step=0 algorithm.unlabeled_weight=-1 algorithm.entropy_weight=-1 algorithm.ramp=1.1
    """,
}


@pytest.mark.parametrize(("algorithm", "word"), [(name, word) for name, text in NEVER.items() for word in text.split()])
def test_what_a_quantity_cannot_be_is_refused(algorithm, word):
    with pytest.raises(NPMatchError) as problem:
        make_config({"algorithm.name": algorithm}, parse_overrides([word]))
    assert str(problem.value).startswith(f"{word.partition('=')[0]}=")


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (
            "npmatch",
            "training.momentum=0 training.ema=0 training.weight_decay=0 backbone.norm_momentum=1 data.workers=0",
        ),
        (
            "npmatch",
            "data.validation=0.2 data.resident_share=0 augment.padding=0 augment.operations=0 augment.cutout=0",
        ),
        ("npmatch", "data.validation=0.2 algorithm.alpha=0 algorithm.confidence=1 algorithm.divergence_weight=0"),
        ("npmatch", "data.validation=5000 algorithm.alpha=1 algorithm.confidence=0 algorithm.max_entropy=0"),
        ("npmatch", "training.eval_every=1000000000"),
        ("semco", "algorithm.similarity=-1 algorithm.group_distance=2"),
        ("mixmatch", "algorithm.ramp=0"),
        ("ups", "algorithm.dropout=0"),
    ],
)
def test_the_ends_that_make_sense_are_taken(algorithm, words):
    assert make_config({"algorithm.name": algorithm}, parse_overrides(words.split()))


class OwnAlgorithm(Algorithm):
    """A user's algorithm, whose keys mean other things than our keys of the same names."""

    @dataclass(frozen=True)
    class Config:
        width: str = "wide"
        window: int = 0
        temperature: float = math.inf
        confidence: float = 95.0
        threshold: Annotated[float | None, Field(gt=0.5, lt=3)] = None


OWN = {"algorithm.name": f"{__name__}:OwnAlgorithm"}


def test_our_bounds_are_no_bounds_of_a_users_algorithm():
    config = make_config(OWN, {"algorithm.width": "narrow", "algorithm.window": "-1", "algorithm.confidence": "-1e99"})
    assert config.algorithm == OwnAlgorithm.Config("narrow", -1, confidence=-1e99)
    assert make_config({}, config.flat()) == config  # as read back from a run's file


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algorithm.threshold=0.5", "algorithm.threshold=0.5: must be greater than 0.5"),
        ("algorithm.threshold=3", "algorithm.threshold=3: must be less than 3"),
        ("algorithm.confidence=nan", "algorithm.confidence=nan: must be a finite number"),
        ("algorithm.confidence=inf", "algorithm.confidence=inf: must be a finite number"),
        ("algorithm.temperature=-inf", "algorithm.temperature=-inf: must be a finite number"),
    ],
)
def test_a_users_algorithm_has_the_bounds_in_its_own_config(word, message):
    with pytest.raises(NPMatchError, match=message):
        make_config(OWN, parse_overrides([word]))
    assert make_config(OWN, {"algorithm.threshold": "2.5"}).algorithm.threshold == 2.5
    assert make_config(OWN, {"algorithm.threshold": "none"}).algorithm.threshold is None
