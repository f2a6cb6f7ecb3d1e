"""The request of one call of `fit`, resolved to a run: its configuration and its folder."""

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
from npmatch.runs.memory import FITTED_KEYS
from npmatch.runs.resume_from import config_from_run, next_folder

# The keys that --minutes sets.
PACED_KEYS = frozenset(
    {
        *("training.iterations", "training.eval_every", "training.checkpoint_every"),
        *("training.ema", "training.compile"),
    }
)


@dataclass
class Request:
    """The arguments of `fit` that determine what to train, and in which folder."""

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
    listing: Listing | None = field(default=None, init=False)  # of a user's images, set by find_run
    given: frozenset[str] = field(default=frozenset(), init=False)  # keys that the user has set, found by find_run

    def find_run(self) -> tuple[Config, Path, list[Choice]]:
        """The run's configuration, its folder, and the settings chosen from the user's images."""
        layers = Layers.of(self.data, self.algorithm, self.seed, self.config_file, self.overrides)
        layers.check_minutes(self.minutes)
        self.given = frozenset(layers.given)
        out = None if self.out is None else Path(self.out)
        if self.resume_from is not None:
            config, path = self._find_continuation(Path(self.resume_from), out, layers)
            return config, path, []
        if out is not None and self._resumes_existing(RunFolder(out)) and not self._names_a_run(layers):
            return RunFolder(out).read_config(), out, []
        resolved = resolve(self.recipe, layers, self.device)
        run = RunFolder(out or default_folder(resolved.config))
        if self._resumes_existing(run):
            kept = self._settings_at_start(run, CHOSEN_KEYS if resolved.choices else frozenset())
            resolved = resolve(self.recipe, layers, self.device, kept, resolved.listing)
        self.listing = resolved.listing
        return resolved.config, run.path, resolved.choices

    def resumes(self, run: RunFolder) -> bool:
        """Whether a run in this folder is to be resumed: on request, or because torchrun has restarted its ranks.

        A folder that this launch has never locked, because it was refused, is not resumed after a restart.
        """
        return self.resume or (restarted_by_torchrun() and run.was_locked_by(launcher_id()))

    def _resumes_existing(self, run: RunFolder) -> bool:
        return run.exists() and self.resumes(run)

    def _names_a_run(self, layers: Layers) -> bool:
        """Whether the request names anything to train; a run in a folder can be resumed without."""
        return bool(self.recipe or layers.given)

    def _find_continuation(self, source: Path, out: Path | None, layers: Layers) -> tuple[Config, Path]:
        """Configuration and folder of a run that starts from the weights of `source`."""
        run = RunFolder(out or next_folder(source))
        kept = self._settings_at_start(run, frozenset()) if self._resumes_existing(run) else {}
        recipe = {} if self.recipe is None else {"recipe": self.recipe}
        return config_from_run(RunFolder(source), run, {**recipe, **kept, **layers.given}), run.path

    def _settings_at_start(self, run: RunFolder, keys: frozenset[str]) -> dict[str, Any]:
        """Settings that a resumed run keeps from its start: those under `keys`, and those that were measured then.

        The sizes of its batches are what fitted into the memory, and its number of steps what --minutes allowed.
        """
        stored = run.read_config().flat()
        keys |= FITTED_KEYS | (PACED_KEYS if self.minutes is not None else frozenset())
        return {key: stored[key] for key in keys & stored.keys()}


def default_folder(config: Config) -> Path:
    """The folder runs/<recipe or source>-<algorithm>-<seed>."""
    name = config.name.replace(":", "-")
    return Path("runs") / f"{config.recipe or config.data.source}-{name}-{config.seed}"
