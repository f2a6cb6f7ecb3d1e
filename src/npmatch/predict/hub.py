"""A model in the convention of the Hugging Face hub: save_pretrained, from_pretrained, push_to_hub.

huggingface_hub's own ModelHubMixin would write a config.json of its own and keep constructor arguments behind the
scenes; here the three methods are plain, under the same names, and a folder holds what `npmatch.load` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from npmatch.decide.calibration import SUMMARY, TENSORS
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.predict.card import ModelFacts, model_card
from npmatch.predict.saved import MODEL_CONFIG, MODEL_WEIGHTS
from npmatch.user_code import trusting
from npmatch.version import __version__

CARD = "README.md"
FILES = (CARD, SUMMARY, TENSORS, MODEL_CONFIG, MODEL_WEIGHTS)  # all it may hold
PATTERNS = ["*.json", "*.safetensors", CARD]  # all that is ever fetched: no code, no pickle


class Pretrained:
    """What a model must offer, and what it gets for it."""

    def save_files(self, folder: Path) -> None:
        """Writes the model: safetensors and JSON alone."""
        raise NotImplementedError

    def facts(self) -> ModelFacts:
        """What its card says of it."""
        raise NotImplementedError

    def kept_card(self) -> str | None:
        """The card it has already; None where one is to be written."""
        return None

    @classmethod
    def load_files(cls, folder: Path, device: str | None) -> Self:
        """The model that `save_files` wrote."""
        raise NotImplementedError

    def save_pretrained(
        self, save_directory: str | Path, *, repo_id: str | None = None, push_to_hub: bool = False, **push: Any
    ) -> str | None:
        """Writes model.safetensors, config.json and a model card into a folder; and perhaps pushes it, too.

        Args:
            save_directory: the folder, made where there is none; files of these names in it are replaced.
            repo_id: where to push to; the folder's name where none is given.
            push_to_hub: whether to push.
            **push: what `push_to_hub` takes.
        """
        folder = Path(save_directory)
        name = repo_id or folder.resolve().name
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
            repo_id: `user/name` on the hub, made where there is none.
            commit_message: of the commit.
            private: whether a repository made now is private; None leaves it to the account's default.
            token: a token of the hub; None takes the one that `hf auth login` stored.
            branch: the branch to push to, main where none is given.
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
        """A model from a folder, or from a repository on the hub; nothing is unpickled.

        Args:
            pretrained_model_name_or_path: a folder that is there, or `user/name` on the hub.
            revision: a branch, a tag or a commit.
            token: a token of the hub, for private repositories.
            cache_dir: where downloads are kept.
            force_download: whether to fetch again what is kept.
            local_files_only: whether to look at what is kept alone.
            device: cpu or cuda; None takes CUDA where there is one.
            trust_code: whether a downloaded model may name Python of yours (`package.module:Class`), which is then run.
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


@contextmanager
def one_line_errors(repo_id: str) -> Iterator[None]:
    """What goes wrong between here and the hub (no network, no such repository, no rights) is one line."""
    try:
        yield
    except NPMatchError:
        raise
    except Exception as error:  # the hub's client has dozens of kinds, its transport others
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise NPMatchError(f"{repo_id}: neither a folder here nor reachable on the hub ({reason})") from error
