"""What the server refuses: other hosts, other origins, missing tokens, large uploads, too many requests, markup."""

import asyncio
import io
import socket
import struct
import threading
import zlib

import httpx
import pytest
from fastapi.testclient import TestClient
from served_page import CLASSES, EVIL_FILE, Served, is_ready, picture_bytes, wait_until
from uvicorn.server import ServerState

from npmatch.errors import NPMatchError
from npmatch.web import app as web_app
from npmatch.web import connections
from npmatch.web.access import Access
from npmatch.web.app import MAX_UPLOAD, STATIC, make_app
from npmatch.web.server import choose_token, page_url

TOKEN = "0123456789abcdef0123"


def client_for(site, **access):
    return TestClient(make_app(site, Access(**access)), base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize(
    "path", ["/", "/static/main.js", "/palette.css", "/api/status", "/api/images", "/api/images/0", "/nothing"]
)
def test_every_answer_carries_the_headers(reader, path):
    headers = reader.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_pages_own_files_name_nothing_outside_and_hold_no_inline_script():
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "javascript:"):
            assert sink not in text, f"{file.name} uses {sink}"
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1
    assert " style=" not in page
    assert " onclick=" not in page


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/types.py",
        "/static//etc/passwd",
        "/static/..%5capp.py",
        "/api/images/../../etc/passwd",
        "/api/images/..%2f..%2fetc%2fpasswd",
        "/api/images/-1",
        "/api/images/999999999999999999999",
        "/api/images/0%00",
        "/figures/..%2f..%2fconfig.svg",
        "/figures/%2e%2e%2fmetrics.jsonl",
    ],
)
def test_no_path_escapes_the_static_files_and_the_run(shared_page, path):
    """Sent through a bare socket: an HTTP client would normalise the path."""
    with socket.create_connection(("127.0.0.1", shared_page.port), timeout=10) as wire:
        wire.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := wire.recv(65536):
            answer += chunk
    assert int(answer.split()[1]) in (400, 404, 422)
    assert b'{"error":' in answer
    assert b"root:" not in answer
    assert b"import" not in answer


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "10.0.0.1", ""]
)
def test_a_foreign_host_name_is_refused(site, host):
    assert client_for(site).get("/api/status", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:9", "[::1]:8000", "LOCALHOST"])
def test_our_own_host_names_are_accepted(site, host):
    assert client_for(site).get("/api/run", headers={"host": host}).status_code == 200


def test_bound_to_all_interfaces_ip_addresses_and_our_own_name_are_accepted(site):
    client = client_for(site, host="0.0.0.0")
    expected = {"10.1.2.3:8000": 200, socket.gethostname(): 200, "evil.example": 400}
    assert {host: client.get("/api/run", headers={"host": host}).status_code for host in expected} == expected


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_only_our_own_page_may_write(client, site, headers, status):
    image = client.get("/api/images").json()["images"][0]["image"]
    for path, content in (
        ("/api/labels", f'{{"image": {image}, "label": 0}}'.encode()),
        ("/api/predict", picture_bytes()),
    ):
        assert client.post(path, content=content, headers=headers).status_code == status
    assert len(site.labelling.annotations.book.labels) == (status == 200)


def test_without_the_token_every_request_is_refused(site):
    client = client_for(site, host="0.0.0.0", token=TOKEN)
    for path in ("/", "/static/main.js", "/api/run", "/api/images/0", "/api/labels.csv", "/nothing"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN[:-1]}"}).status_code == 401
    page = client.get("/", headers={"accept": "text/html,*/*"})
    assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "<p>This page requires a token." in page.text
    assert client.post("/api/undo").status_code == 401
    assert client.get("/", params={"token": TOKEN + "x"}).status_code == 401
    assert client.get("/", params={"token": "ü" * 20}).status_code == 401
    assert not client.cookies
    assert client.get("/api/run", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_token_in_the_url_becomes_a_cookie_that_scripts_cannot_read(site):
    client = client_for(site, host="0.0.0.0", token=TOKEN)
    first = client.get("/", params={"token": TOKEN})
    assert first.status_code == 200
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/api/run").status_code == 200


def test_a_token_is_random_unless_it_is_given():
    one, two = choose_token(None), choose_token(None)
    assert len(one) == len(two) == 32
    assert one != two
    assert choose_token(TOKEN) == TOKEN
    with pytest.raises(NPMatchError, match="at least 16"):
        choose_token("secret; Path=/x")
    assert page_url("::1", 8000, TOKEN) == f"http://[::1]:8000/?token={TOKEN}"
    assert page_url("10.0.0.1", 80, TOKEN) == f"http://10.0.0.1:80/?token={TOKEN}"


def endless(sent):
    """A body without an end and without a Content-Length."""
    while True:
        sent.append(2**16)
        yield b"\0" * 2**16


def test_an_upload_without_a_length_is_cut_off_at_the_limit(shared_page):
    sent = []
    with httpx.Client(base_url=shared_page.url, timeout=30) as client:
        try:
            answer = client.post("/api/predict", content=endless(sent))
            assert answer.status_code == 413
            assert "20 MB" in answer.json()["error"]
        except httpx.WriteError:  # the server closed the connection while the client was sending
            pass
        assert sum(sent) < 4 * MAX_UPLOAD
        assert client.post("/api/predict", content=picture_bytes()).status_code == 200


def test_an_upload_with_a_false_length_is_cut_off_at_the_limit(shared_page):
    head = "POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", shared_page.port), timeout=20) as wire:
        wire.sendall(head.encode())
        try:
            for _ in range(4 * MAX_UPLOAD // 2**20):
                wire.sendall(b"\0" * 2**20)
            assert b" 413 " in wire.recv(65536)
        except OSError:  # the server closed the connection while the client was sending
            pass


def test_a_label_with_a_large_body_is_refused(reader):
    assert reader.post("/api/labels", content=b'{"image": 1, "x": "' + b"a" * 5000 + b'"}').status_code == 413


def png_of_size(width, height):
    """A few bytes whose header claims width × height pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(png_of_size(8000, 8000), "more than the 50,000,000 allowed", id="large"),
        pytest.param(png_of_size(50_000, 50_000), "bomb", id="bomb"),
        (b"", "not a readable image"),
        (b"not a picture", "not a readable image"),
        (picture_bytes()[:70], "not a readable image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a readable image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "not a readable image"),
    ],
)
def test_an_upload_that_is_no_usable_image_gets_an_error_in_one_line(reader, content, message):
    answer = reader.post("/api/predict", content=content)
    assert answer.status_code == 422
    assert message in answer.json()["error"]
    assert "Traceback" not in answer.text
    assert " at 0x" not in answer.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"image": "0", "label": 0}',
        b'{"image": -1, "label": 0}',
        b'{"image": 999999, "label": 0}',
        b'{"image": 0, "label": 0}',  # a labelled training image: cannot be changed here
        b'{"image": 12, "label": 3}',
        b'{"image": 12, "label": -1}',
        b'{"image": 12, "label": 1.5}',
        b'{"image": 12, "label": "../../x"}',
        b'{"image": 1e400, "label": 0}',
    ],
)
def test_invalid_labels_change_nothing(reader, shared_page, content):
    answer = reader.post("/api/labels", content=content)
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert not (shared_page.site.folder / "labels.csv").exists()


def test_names_are_sent_as_json_only(reader):
    """No browser renders JSON as a page; the browser tests check that the page inserts names as text."""
    answer = reader.get("/api/images", params={"count": 200})
    assert answer.headers["content-type"] == "application/json"
    names = [image["name"] for image in answer.json()["images"]]
    assert f"unlabeled/{EVIL_FILE}" in names
    assert "unlabeled/new line.png" in names
    assert reader.get("/api/run").json()["classes"] == list(CLASSES)
    drawing = reader.get("/figures/classes.svg").text
    assert "<img" not in drawing


def test_requests_beyond_the_limit_get_503_with_retry_after(site, monkeypatch):
    """With a limit of three, three of eight simultaneous requests are answered and five are refused."""
    gate, answer = threading.Event(), site.answer

    def slow(content):
        gate.wait(30)
        return answer(content)

    monkeypatch.setattr(site, "answer", slow)
    with Served(site, max_predictions=3) as page:
        wait_until(lambda: is_ready(site))
        results = []

        def ask():
            results.append(httpx.post(f"{page.url}/api/predict", content=picture_bytes(), timeout=60))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(results) == 5)
        assert httpx.get(f"{page.url}/api/status").status_code == 200, "other requests are answered meanwhile"
        gate.set()
        for thread in threads:
            thread.join()
        refused = [r for r in results if r.status_code == 503]
        assert sorted(r.status_code for r in results) == [200] * 3 + [503] * 5
        assert all(r.headers["retry-after"] == "1" for r in refused)
        assert "3 requests are waiting already, which is the limit" in refused[0].json()["error"]
        assert httpx.post(f"{page.url}/api/predict", content=picture_bytes(), timeout=60).status_code == 200


def test_a_slow_upload_times_out_and_frees_its_place(site, monkeypatch):
    monkeypatch.setattr(web_app, "UPLOAD_SECONDS", 0.3)
    with Served(site, max_predictions=1) as page:
        wait_until(lambda: is_ready(site))
        with socket.create_connection(("127.0.0.1", page.port), timeout=20) as wire:
            wire.sendall(b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nfew")
            assert b" 408 " in wire.recv(65536)
        assert httpx.post(f"{page.url}/api/predict", content=picture_bytes(), timeout=60).status_code == 200


def half_a_request(port, content=b"GET / HTTP/1.1\r\nHost: x\r\nX: "):
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(content)
    return connection


def test_a_client_has_to_send_its_headers_in_time(site, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    whole = b"GET /palette.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with Served(site) as page:
        silent, slow = (half_a_request(page.port, content) for content in (b"", b"GET / HTTP/1.1\r\nHost: x\r\nX: "))
        again = half_a_request(page.port, whole)  # a second request on the same connection is held to the time too
        assert again.recv(10).startswith(b"HTTP/1.1")
        again.sendall(b"GET / HTTP")
        for connection in (silent, slow, again):
            while connection.recv(4096):  # ends where the server closes the connection, else after 30 s with an error
                pass
            connection.close()
        assert not connections.PromptClients.waiting
        assert httpx.get(f"{page.url}/api/run", timeout=30).status_code == 200


def test_clients_that_send_half_of_a_request_keep_nobody_out(site):
    with Served(site) as page:
        held = [half_a_request(page.port) for _ in range(connections.MAX_CONNECTIONS + 8)]
        answers = [httpx.get(f"{page.url}/palette.css", timeout=30).status_code for _ in range(5)]
        for connection in held:
            connection.close()
    assert answers == [200] * 5


def test_of_many_clients_that_come_at_once_the_longest_wait_ends(monkeypatch):
    """All of them before the event loop closes a connection, as after a pause of the server."""

    class Transport(asyncio.Transport):
        is_closing = get_extra_info = lambda self, *_: None

        def close(self):
            closed.append(self)

    async def connect(number):
        config = connections.server_config(None)
        made = [connections.PromptClients(config, ServerState(), {}) for _ in range(number)]
        for client in made:
            client.connection_made(Transport())
        kept = [client for client in made if client.transport not in closed]
        for client in kept:
            client._stop_waiting()
        return made.index(kept[0]), len(kept)

    closed = []
    number = connections.MAX_WAITING + 50
    assert asyncio.run(connect(number)) == (50, connections.MAX_WAITING)


def test_a_client_whose_upload_is_too_large_receives_the_error(site, monkeypatch):
    """The server reads the rest of the body first; closing at once would look like a broken connection."""
    monkeypatch.setattr(web_app, "MAX_UPLOAD", 2**20)
    with Served(site) as page:
        wait_until(lambda: is_ready(site))
        answer = httpx.post(f"{page.url}/api/predict", content=io.BytesIO(b"\0" * 2**21).read(), timeout=60)
        assert answer.status_code == 413
