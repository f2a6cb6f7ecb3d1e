"""What a user asks of `fit`, and which run that is: its configuration and its folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npmatch.config.choices import Choice
from npmatch.config.resolve import Overrides, check_minutes, file_as_layer, resolve, words_as_layer
from npmatch.config.tree import Config
from npmatch.distributed.ranks import launcher, restarted
from npmatch.files import is_held_by
from npmatch.runs.folder import is_run, read_run_config
from npmatch.runs.resume import continued_config, next_folder

# What --minutes decides.
PACED = ("training.iterations", "training.eval_every", "training.checkpoint_every", "training.ema")


@dataclass(frozen=True)
class Asked:
    """The words of one call of `fit`, which says what they mean."""

    recipe: str | None
    data: str | Path | None
    algorithm: str | None
    out: str | Path | None
    seed: int | None
    device: str | None
    resume: bool
    resume_from: str | Path | None
    config_file: str | Path | None
    overrides: Overrides
    minutes: float | None

    def find_run(self) -> tuple[Config, Path, list[Choice]]:
        """The run's configuration, its folder, and what was chosen for the user's images."""
        if self.minutes is not None:
            check_minutes(self.minutes, self.config_file, self.overrides)
        run = None if self.out is None else Path(self.out)
        if self.resume_from is not None:
            return self._continued(Path(self.resume_from), run)
        if run is not None and is_run(run) and self.goes_on(run) and not self._says_what():
            return read_run_config(run), run, []
        words = (self.recipe, self.data, self.algorithm, self.seed, self.config_file, self.overrides, self.device)
        config, choices = resolve(*words)
        run = run or default_folder(config)
        if is_run(run) and self.goes_on(run):
            config, choices = resolve(*words, remembered_choices(run, choices, self.minutes))
        return config, run, choices

    def goes_on(self, run: Path) -> bool:
        """Whether a run there does; torchrun starts ranks anew when one died, but a refused run stays refused."""
        return self.resume or (restarted() and is_held_by(run, launcher()))

    def _says_what(self) -> bool:
        """Whether anything was said of what to train; a run in a folder goes on without."""
        return self.seed is not None or any((self.recipe, self.data, self.algorithm, self.config_file, self.overrides))

    def _continued(self, source: Path, run: Path | None) -> tuple[Config, Path, list[Choice]]:
        """A new run from another's weights, under the words given here."""
        run = run or next_folder(source)
        words = file_as_layer(self.config_file) | words_as_layer(self.data, self.algorithm, self.seed, self.overrides)
        if is_run(run) and self.goes_on(run):
            words = {**remembered_choices(run, (), self.minutes), **words}
        if self.recipe is not None:
            words = {"recipe": self.recipe, **words}
        return continued_config(source, run, words), run, []


def remembered_choices(run: Path, choices: Iterable[Choice], minutes: float | None) -> dict[str, Any]:
    """What was chosen, and measured, when a run was started: it goes on with that, whatever has changed since."""
    stored = read_run_config(run).flat()
    keys = {choice.key for choice in choices} | (set(PACED) if minutes is not None else set())
    return {key: stored[key] for key in keys & stored.keys()}


def default_folder(config: Config) -> Path:
    """runs/<recipe or source>-<algorithm>-<seed>."""
    name = config.name.replace(":", "-")
    return Path("runs") / f"{config.recipe or config.data.source}-{name}-{config.seed}"
