"""save_pretrained, from_pretrained and push_to_hub, as in the Hugging Face libraries.

These methods do not use huggingface_hub's ModelHubMixin, which would write a config.json of its own from the
constructor's arguments. They write and read the files that `npmatch.load` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from npmatch.decide.calibration import SUMMARY, TENSORS
from npmatch.errors import NPMatchError
from npmatch.files import in_utf8, write_atomically
from npmatch.predict.card import ModelFacts, model_card
from npmatch.predict.saved import MODEL_CONFIG, MODEL_WEIGHTS
from npmatch.user_code import trusting
from npmatch.version import __version__

CARD = "README.md"
FILES = (CARD, SUMMARY, TENSORS, MODEL_CONFIG, MODEL_WEIGHTS)  # all files that a saved model may have
PATTERNS = ["*.json", "*.safetensors", CARD]  # the only files to upload and download: no code, no pickle


class Pretrained:
    """Base class that adds saving, loading and the hub; a subclass implements the first four methods."""

    def save_files(self, folder: Path) -> None:
        """Writes the model as safetensors and JSON."""
        raise NotImplementedError

    def facts(self) -> ModelFacts:
        """The facts for the model card."""
        raise NotImplementedError

    def kept_card(self) -> str | None:
        """A model card to keep; None if a new one should be written."""
        return None

    @classmethod
    def load_files(cls, folder: Path, device: str | None) -> Self:
        """The model that `save_files` wrote."""
        raise NotImplementedError

    def save_pretrained(
        self, save_directory: str | Path, *, repo_id: str | None = None, push_to_hub: bool = False, **push: Any
    ) -> str | None:
        """Writes model.safetensors, config.json and a model card into a folder; with `push_to_hub`, uploads them too.

        Args:
            save_directory: the folder, which is created if necessary; files of these names in it are replaced.
            repo_id: `user/name` on the hub to upload to; None takes the folder's name.
            push_to_hub: whether to upload the model.
            **push: further arguments of `push_to_hub`.
        """
        folder = Path(save_directory)
        name = in_utf8(repo_id or folder.resolve().name)
        try:
            text = self.kept_card() or model_card(self.facts(), name)
            folder.mkdir(parents=True, exist_ok=True)
            self.save_files(folder)
            write_atomically(folder / CARD, text.encode())
        except OSError as error:
            raise NPMatchError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from error
        return self.push_to_hub(name, **push) if push_to_hub else None

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Upload a model trained with npmatch",
        private: bool | None = None,
        token: str | bool | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Uploads what `save_pretrained` writes, in one commit, and returns the commit's address.

        Args:
            repo_id: `user/name` on the hub; the repository is created if necessary.
            commit_message: the message of the commit.
            private: whether a new repository is private; None takes the account's default.
            token: a token of the hub; None takes the one that `hf auth login` stored.
            branch: the branch to push to; None is the main branch.
            create_pr: whether to open a pull request with the commit.
        """
        from huggingface_hub import HfApi

        api = HfApi(token=token, library_name="npmatch", library_version=__version__)
        with TemporaryDirectory() as folder, one_line_errors(repo_id):
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            self.save_pretrained(folder, repo_id=repo_id)
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                commit_message=commit_message,
                revision=branch,
                create_pr=create_pr,
                allow_patterns=PATTERNS,
            )
        return str(commit)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        device: str | None = None,
        trust_code: bool = False,
    ) -> Self:
        """Loads a model from a folder, or from a repository on the hub; nothing is unpickled.

        Args:
            pretrained_model_name_or_path: an existing folder, or `user/name` on the hub.
            revision: a branch, a tag or a commit.
            token: a token of the hub, for private repositories.
            cache_dir: the folder for downloads; None takes huggingface_hub's cache.
            force_download: whether to download files that are in the cache already.
            local_files_only: whether to use the cache only, without network.
            device: cpu or cuda; None takes CUDA if it is available.
            trust_code: whether to import and run the Python code that the model's files name (`package.module:Class`).
        """
        if Path(pretrained_model_name_or_path).is_dir():
            with trusting(trust_code):
                return cls.load_files(Path(pretrained_model_name_or_path), device)
        repo_id = str(pretrained_model_name_or_path)
        import huggingface_hub

        with one_line_errors(repo_id):
            folder = huggingface_hub.snapshot_download(
                repo_id,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                allow_patterns=PATTERNS,
                library_name="npmatch",
                library_version=__version__,
            )
        with trusting(trust_code):
            return cls.load_files(Path(str(folder)), device)


def read_card(folder: Path) -> str:
    """The model card in a folder; a link out of the folder is refused, because the card is published."""
    card = folder / CARD
    inside = [folder.resolve()]
    if folder.parent.name == "snapshots":  # the hub's cache, whose files are links to its blobs
        inside.append(folder.parent.parent.resolve() / "blobs")
    if not any(card.resolve().is_relative_to(place) for place in inside):
        raise NPMatchError(
            f"{card}: a link to a file elsewhere, which would be published with the model; replace it by the file"
        )
    return card.read_text(encoding="utf-8", errors="replace")


@contextmanager
def one_line_errors(repo_id: str) -> Iterator[None]:
    """Turns errors of the hub's client (no network, no such repository, no rights) into an NPMatchError of one line."""
    try:
        yield
    except NPMatchError:
        raise
    except Exception as error:  # the client and its transport raise dozens of types
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise NPMatchError(f"{repo_id}: neither a folder here nor reachable on the hub ({reason})") from error
