"""A run's page behind a real socket, and hostile names of files and classes."""

import io
import threading
import time

import uvicorn
from PIL import Image

from npmatch.web.access import Access
from npmatch.web.app import make_app
from npmatch.web.connections import server_config
from npmatch.web.server import open_socket

EVIL_CLASS = "<img src=x onerror=\"document.title='owned'\">"
EVIL_FILE = "\"><img src=x onerror=\"document.title='owned'\"><b a='.png"
CLASSES = ("-dash", EVIL_CLASS, "grey & plain")
UNLABELED = ["new\nline.png", EVIL_FILE, "ünï cödé 图.png", "=1+1.png", *(f"{i}.png" for i in range(20))]


def picture_bytes(size=(40, 30), form="PNG", mode="RGB"):
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert(mode).save(buffer, form)
    return buffer.getvalue()


def wait_until(is_true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def is_ready(site):
    counts = site.status()["counts"]
    assert site.problem is None
    return counts is not None and counts["looked_at"] == counts["images"]


class Served:
    """Serves the page behind a real socket, in a thread."""

    def __init__(self, site, **changes):
        self.socket = open_socket("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        access = Access(port=self.port, token=changes.pop("token", None))
        make = changes.pop("make", make_app)
        self.server = uvicorn.Server(server_config(make(site, access, **changes)))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.url = f"http://127.0.0.1:{self.port}"
        self.site = site

    def __enter__(self):
        self.thread.start()
        wait_until(lambda: self.server.started)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(timeout=10)
        self.socket.close()
