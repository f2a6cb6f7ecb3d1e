"""What one call of `fit` asks for, and which run that is: its configuration and its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npmatch.config.choices import CHOSEN_KEYS, Choice
from npmatch.config.resolve import Layers, Overrides, resolve
from npmatch.config.tree import Config
from npmatch.data.sources.listing import Listing
from npmatch.distributed.ranks import launcher_id, restarted_by_torchrun
from npmatch.runs.folder import RunFolder
from npmatch.runs.resume_from import config_from_run, next_folder

# What --minutes decides.
PACED_KEYS = frozenset(
    {"training.iterations", "training.eval_every", "training.checkpoint_every", "training.ema"},
)


@dataclass
class Request:
    """The arguments of `fit` that say what to train, and where."""

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
    listing: Listing | None = field(default=None, init=False)  # of a user's images, once they have been listed

    def find_run(self) -> tuple[Config, Path, list[Choice]]:
        """The run's configuration, its folder, and what was chosen for the user's images."""
        layers = Layers.of(self.data, self.algorithm, self.seed, self.config_file, self.overrides)
        layers.check_minutes(self.minutes)
        out = None if self.out is None else Path(self.out)
        if self.resume_from is not None:
            config, path = self._continued(Path(self.resume_from), out, layers)
            return config, path, []
        if out is not None and self._goes_on(RunFolder(out)) and not self._names_a_run(layers):
            return RunFolder(out).read_config(), out, []
        found = resolve(self.recipe, layers, self.device)
        run = RunFolder(out or default_folder(found.config))
        if self._goes_on(run):
            kept = self._remembered(run, CHOSEN_KEYS if found.choices else frozenset())
            found = resolve(self.recipe, layers, self.device, kept, found.listing)
        self.listing = found.listing
        return found.config, run.path, found.choices

    def resumes(self, run: RunFolder) -> bool:
        """Whether a run in the folder goes on; torchrun starts ranks anew when one died, but a refused run stays so."""
        return self.resume or (restarted_by_torchrun() and run.was_locked_by(launcher_id()))

    def _goes_on(self, run: RunFolder) -> bool:
        return run.exists() and self.resumes(run)

    def _names_a_run(self, layers: Layers) -> bool:
        """Whether the request says what to train; a run in a folder goes on without."""
        return bool(self.recipe or layers.given)

    def _continued(self, source: Path, out: Path | None, layers: Layers) -> tuple[Config, Path]:
        """A new run from another's weights, under the settings given here."""
        run = RunFolder(out or next_folder(source))
        kept = self._remembered(run, frozenset()) if self._goes_on(run) else {}
        recipe = {} if self.recipe is None else {"recipe": self.recipe}
        return config_from_run(RunFolder(source), run, {**recipe, **kept, **layers.given}), run.path

    def _remembered(self, run: RunFolder, keys: frozenset[str]) -> dict[str, Any]:
        """What was chosen, and measured, when a run was started: it goes on with that, whatever has changed since."""
        stored = run.read_config().flat()
        keys |= PACED_KEYS if self.minutes is not None else frozenset()
        return {key: stored[key] for key in keys & stored.keys()}


def default_folder(config: Config) -> Path:
    """runs/<recipe or source>-<algorithm>-<seed>."""
    name = config.name.replace(":", "-")
    return Path("runs") / f"{config.recipe or config.data.source}-{name}-{config.seed}"
