"""The page in a real browser: drop, label, undo, reload; keyboard only; on a phone; hostile names."""

import errno
import re
import shutil

import pytest
from served_page import CLASSES, EVIL_FILE, Served, is_ready, picture_bytes, wait_until

from npmatch.web.site import Site

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium")
expect = sync_api.expect

DROP = """([bytes, name]) => {
  const files = new DataTransfer();
  files.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
  document.querySelector("#drop").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true }));
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A fresh window; the test fails if a script throws or violates the content security policy."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    window = context.new_page()
    window.set_default_timeout(20_000)
    problems = []
    window.on("pageerror", lambda error: problems.append(str(error)))
    window.on("console", lambda message: problems.append(message.text) if "violates" in message.text else None)
    yield window
    context.close()
    assert problems == []


def open_grid(page, url):
    page.goto(f"{url}/#label")
    expect(page.locator("#grid li")).to_have_count(24)
    expect(page.locator("#grid li").first).to_be_focused()


def labels_of(site):
    return dict(site.labelling.annotations.book.labels)


def test_a_dropped_image_gets_a_prediction(page, shared_page):
    page.goto(shared_page.url)
    expect(page.locator("#run-name")).to_have_text("run")
    page.evaluate(DROP, [list(picture_bytes()), "boat.png"])
    expect(page.locator("#file-name")).to_have_text("boat.png")
    expect(page.locator(".bars li")).to_have_count(3)
    expect(page.locator("#answer .pill")).to_have_text(re.compile("sure"))
    expect(page.locator("#near li")).to_have_count(8)
    shares = [float(text.removesuffix(" %")) for text in page.locator(".bar-value").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert page.locator("#preview").evaluate("image => image.complete && image.naturalWidth") == 40
    page.evaluate(DROP, [list(b"not a picture"), "letter.png"])
    expect(page.locator("#answer .problem-text")).to_contain_text("not a readable image")


def test_label_undo_and_reload_by_keyboard_only(page, served):
    open_grid(page, served.url)
    train = served.site.labelling.train
    shown = served.site.labelling.page("todo", None, 0, 24)["images"]
    names = [train.names[image["image"]] for image in shown]
    page.keyboard.press("1")
    expect(page.locator("#grid li").nth(1)).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("3")
    expect(page.locator("#grid li.given")).to_have_count(2)
    page.keyboard.press("Space")
    expect(page.locator("#grid li.skipped")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#grid li.given")).to_have_count(3)
    expected = {names[0]: CLASSES[0], names[8]: CLASSES[2], names[10]: CLASSES[shown[10]["guess"]]}
    wait_until(lambda: labels_of(served.site) == expected)
    page.keyboard.press("Control+z")
    expect(page.locator("#grid li.given")).to_have_count(2)
    page.keyboard.press("Backspace")
    expect(page.locator("#grid li.skipped")).to_have_count(0)
    expect(page.locator("#grid li").nth(9)).to_be_focused()
    page.reload()
    expect(page.locator("#progress-line")).to_contain_text("2 labelled")
    expect(page.locator("#grid li")).to_have_count(22)
    page.locator("#view-choice").select_option("labelled")
    expect(page.locator("#grid li.given")).to_have_count(2)
    assert labels_of(served.site) == {names[0]: CLASSES[0], names[8]: CLASSES[2]}


def test_a_label_that_could_not_be_saved_is_told_and_asked_for_again(page, served, monkeypatch):
    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    open_grid(page, served.url)
    with monkeypatch.context() as patch:
        patch.setattr("npmatch.runs.label_file.write_atomically", full_disk)
        page.keyboard.press("1")
        expect(page.locator("#unsaved")).to_contain_text("1 change is not saved")
        expect(page.locator("#unsaved")).to_contain_text("No space left on device")
        expect(page.locator("#grid li.given")).to_have_count(0)
        page.keyboard.press("1")
        expect(page.locator("#unsaved")).to_contain_text("2 changes are not saved")
    for _ in range(22):
        page.keyboard.press("1")
    expect(page.locator("#grid li.given")).to_have_count(22)
    expect(page.locator("#grid li").first).to_be_focused()
    page.keyboard.press("1")
    expect(page.locator("#unsaved")).to_contain_text("1 change is not saved")
    page.keyboard.press("1")
    expect(page.locator("#unsaved")).to_be_hidden()
    wait_until(lambda: len(labels_of(served.site)) == 24)


def test_labels_are_there_after_a_restart(page, run_folder):
    site = Site(run_folder, device="cpu")
    with Served(site) as first:
        wait_until(lambda: is_ready(site))
        open_grid(page, first.url)
        page.keyboard.press("2")
        wait_until(lambda: len(labels_of(site)) == 1)
    again = Site(run_folder, device="cpu")
    with Served(again) as second:
        wait_until(lambda: is_ready(again))
        page.goto(f"{second.url}/#label")
        expect(page.locator("#progress-line")).to_contain_text("1 labelled")
        assert list(labels_of(again).values()) == [CLASSES[1]]


def test_everything_can_be_reached_by_keyboard_and_the_focus_is_visible(page, served):
    page.goto(served.url)
    page.keyboard.press("Alt+2")
    expect(page.locator("#grid li").first).to_be_focused()
    outline = page.locator("#grid li").first.evaluate("tile => getComputedStyle(tile).outlineWidth")
    assert float(outline.removesuffix("px")) >= 2
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    assert labels_of(served.site) == {}, "a key pressed while the dialog is open gives no label"
    page.keyboard.press("Tab")
    names = []
    for _ in range(12):
        names.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        page.keyboard.press("Tab")
    assert {"agree", "skip", "undo", "copy", "export"} <= set(names)
    for name in ("Agree", "Skip", "Undo", "Previous", "Next", "Keys"):  # accessible names, without the key symbols
        assert page.get_by_role("button", name=name, exact=True).count() == 1
    page.keyboard.press("Alt+3")
    expect(page.locator("#figure-classes img")).to_be_visible()


def test_names_are_text_and_never_markup(page, served):
    open_grid(page, served.url)
    assert EVIL_FILE in " ".join(tile.get_attribute("aria-label") for tile in page.locator("#grid li").all())
    for _ in range(24):  # fast typing: no key press waits for the response to the previous one
        page.keyboard.press("2")
    expect(page.locator("#nothing")).to_contain_text("Nothing is left")
    page.locator("#view-choice").select_option("all")
    expect(page.locator("#grid li.given")).to_have_count(24)
    assert page.locator(".tile-given").first.inner_text() == CLASSES[1]
    page.evaluate(DROP, [list(picture_bytes()), EVIL_FILE])
    expect(page.locator(".bars li")).to_have_count(3)
    assert page.locator("#file-name").inner_text() == EVIL_FILE
    page.goto(f"{served.url}/#figures")
    expect(page.locator("#figure-classes img")).to_be_visible()
    assert page.locator("img[onerror]").count() == 0
    assert "owned" not in page.title()


@pytest.mark.parametrize("view", ["try", "label", "figures"])
def test_a_phone_needs_no_sideways_scrolling(browser, served, view):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"{served.url}/#{view}")
    if view == "try":
        page.evaluate(DROP, [list(picture_bytes()), "a-very-long-name-" * 12 + ".png"])
        expect(page.locator(".bars li")).to_have_count(3)
    elif view == "label":
        page.locator("#grid li").nth(4).tap()
        page.locator("#classes button").nth(2).tap()
        expect(page.locator("#grid li.given")).to_have_count(1)
        wait_until(lambda: list(labels_of(served.site).values()) == [CLASSES[2]])
        page.locator("#undo").tap()
        expect(page.locator("#grid li.given")).to_have_count(0)
    else:
        expect(page.locator("#figure-risk img")).to_be_visible()
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390], "a phone would zoom out"
    context.close()


def test_the_token_disappears_from_the_address_bar(page, site):
    token = "0123456789abcdef0123"
    with Served(site, token=token) as served:
        wait_until(lambda: is_ready(site))
        page.goto(f"{served.url}/?token={token}#label")
        expect(page.locator("#grid li")).to_have_count(24)
        assert token not in page.url
        page.keyboard.press("1")
        expect(page.locator("#grid li.given")).to_have_count(1)


def test_two_people_label_without_overwriting_each_other(page, browser, served):
    open_grid(page, served.url)
    context = browser.new_context()
    other = context.new_page()
    open_grid(other, served.url)
    page.keyboard.press("1")
    expect(page.locator("#progress-line")).to_contain_text("1 labelled")
    other.keyboard.press("2")
    expect(other.locator("#say")).to_contain_text("Somebody else has labelled")
    expect(other.locator("#grid li").first.locator(".tile-given")).to_have_text(CLASSES[0])
    other.keyboard.press("2")
    wait_until(lambda: len(labels_of(served.site)) == 2)
    other.reload()
    expect(other.locator("#grid li")).to_have_count(22)
    other.keyboard.press("Backspace")
    expect(other.locator("#grid li")).to_have_count(23)
    other.keyboard.press("Backspace")
    expect(other.locator("#say")).to_contain_text("nothing to undo")
    assert list(labels_of(served.site).values()) == [CLASSES[0]]
    context.close()


def test_a_select_element_keeps_the_focus_while_its_value_changes(page, shared_page):
    open_grid(page, shared_page.url)
    page.locator("#view-choice").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
        expect(page.locator("#view-choice")).to_be_focused()
    expect(page.locator("#view-choice")).to_have_value("all")
    expect(page.locator("#grid li")).to_have_count(24)
    expect(page.locator("#view-choice")).to_be_focused()


def test_a_right_to_left_name_does_not_reverse_other_text(page, shared_page):
    open_grid(page, shared_page.url)
    order = page.evaluate(
        """async () => {
          const panel = await import("/static/panel.js");
          panel.showClasses(["قطة منزلية", "b", "c"]);
          const prediction = { guess: 0, given: null, confidence: 0.123, share: 1, sureness: "very unsure" };
          panel.showImage({ image: 12, name: "x", ...prediction });
          const text = document.querySelector("#focus-guess span").firstChild;
          const left = (from) => {
            const range = document.createRange();
            range.setStart(text, text.data.indexOf(from));
            range.setEnd(text, text.data.indexOf(from) + 1);
            return range.getBoundingClientRect().left;
          };
          return [document.querySelector("#focus-guess b").getBoundingClientRect().left, left("1"), left("%")];
        }"""
    )
    assert order == sorted(order), "the name, then its share, then the sign"


def test_a_stopped_run_is_reported(page, run_folder):
    (run_folder / "model.safetensors").unlink()
    with Served(Site(run_folder, device="cpu")) as served:
        page.goto(served.url)
        expect(page.locator("#notice")).to_contain_text("Training stopped at step 12 of 12")
        expect(page.locator("#figures-lead")).not_to_be_empty()
        expect(page.locator("#live")).to_be_hidden()


def test_many_classes_are_found_by_typing(page, shared_page):
    """The search field and the keys, with a hundred classes."""
    open_grid(page, shared_page.url)
    result = page.evaluate(
        """async () => {
          const panel = await import("/static/panel.js");
          panel.showClasses(Array.from({ length: 100 }, (_, k) => `kind ${k}`));
          const field = document.querySelector("#pick");
          field.value = "nd 77";
          field.dispatchEvent(new Event("input"));
          const found = [...document.querySelectorAll("#classes button")].map((b) => b.textContent);
          return { found, isOffered: !field.hidden, digits: panel.keysFor(["b", "7", "x y", "a"]) };
        }"""
    )
    assert result == {"found": ["kind 77"], "isOffered": True, "digits": ["b", "7", "1", "a"]}
