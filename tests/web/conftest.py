"""A run on a small folder of images, and clients for its page."""

import shutil

import httpx
import pytest
from fastapi.testclient import TestClient
from served_page import CLASSES, UNLABELED, Served, is_ready, wait_until

import npmatch
from few_photos import save_photo, save_photos
from npmatch.web.access import Access
from npmatch.web.app import make_app
from npmatch.web.site import Site


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory):
    """A finished run and its data; tests that write use a copy of it."""
    root = tmp_path_factory.mktemp("web")
    save_photos(root / "data", (24, 20), CLASSES, labels=4, unlabeled=0, test=4)
    for i, name in enumerate(UNLABELED):
        save_photo(root / "data" / "unlabeled" / name, seed=i, size=(24, 20))
    settings = {
        "training.iterations": 12,
        "training.batch": 6,
        "training.log_every": 2,
        "training.eval_every": 4,
        "backbone.width": 4,
        "data.image_size": 16,
    }
    npmatch.fit(data=root / "data", out=root / "run", quiet=True, device="cpu", overrides=settings)
    return root / "run"


@pytest.fixture
def run_folder(trained_folder, tmp_path):
    """A copy of the run that a test may write labels to."""
    return shutil.copytree(trained_folder, tmp_path / "run")


@pytest.fixture
def site(run_folder):
    return Site(run_folder, device="cpu")


@pytest.fixture
def served(site):
    with Served(site) as page:
        wait_until(lambda: is_ready(site))
        yield page


@pytest.fixture
def client(site):
    """A client of the application, without a socket."""
    with TestClient(make_app(site, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: is_ready(site))
        yield client


@pytest.fixture(scope="session")
def shared_page(trained_folder, tmp_path_factory):
    """A page behind a real socket, shared by the tests that write nothing."""
    site = Site(shutil.copytree(trained_folder, tmp_path_factory.mktemp("shared") / "run"), device="cpu")
    with Served(site) as page:
        wait_until(lambda: is_ready(site))
        yield page


@pytest.fixture(scope="session")
def reader(shared_page):
    """A client of the shared page."""
    with httpx.Client(base_url=shared_page.url, timeout=60) as client:
        yield client
