"""From a folder of pictures without any label to predictions, in a real browser and with no other tool."""

import csv
import re

import pytest
from folder_page import KINDS, kind_of, save_folder, save_picture, train_in_seconds
from served_page import Served, wait_until
from test_web_browser import CHROMIUM, browser, page, sync_api

from npmatch.web.project import Project
from npmatch.web.project_app import make_project_app

__all__ = ["browser", "page"]  # fixtures
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium")
expect = sync_api.expect
SECONDS = 90_000  # milliseconds: a training in a process of its own on a busy machine


@pytest.fixture
def folder(tmp_path):
    return save_folder(tmp_path / "photos")


@pytest.fixture
def served(folder, monkeypatch):
    train_in_seconds(monkeypatch)
    project = Project(folder, device="cpu")
    with Served(project, make=make_project_app) as page:
        wait_until(lambda: project.progress["stage"] == "ready")
        yield page


def new_pictures(tmp_path):
    for i, kind in enumerate(KINDS):
        save_picture(tmp_path / f"new-{kind}.png", kind, 500 + i)
    return [tmp_path / f"new-{kind}.png" for kind in KINDS]


def tab_to(page, name):
    """Moves the focus to an element by the tab key."""
    for _ in range(40):
        if page.evaluate("document.activeElement.id") == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"#{name} cannot be reached by the tab key")


def choose_by_key(page, files):
    """Opens the file chooser by a key; a busy browser may miss the first."""
    chosen = []
    page.once("filechooser", lambda chooser: chosen.append(chooser.set_files(files)))
    for key in ("Enter", "Space", "Enter"):
        tab_to(page, "file")
        page.keyboard.press(key)
        for _ in range(20):
            page.wait_for_timeout(100)
            if chosen:
                return
    raise AssertionError("no key opens the file chooser")


def rows(folder):
    return list(csv.DictReader((folder / "labels.csv").open()))


def test_the_whole_way_by_keyboard_alone(page, browser, served, folder, tmp_path):
    page.goto(served.url)
    expect(page.locator("#start-lead")).to_contain_text("30 pictures")
    page.keyboard.press("Alt+2")
    expect(page.locator("#grid li").first).to_be_focused()
    known = []
    for number in range(12):
        expect(page.locator("#grid li.given")).to_have_count(number)
        kind = kind_of(page.locator("#focus-name").inner_text())
        if kind in known:
            page.keyboard.press(str(1 + known.index(kind)))
        else:
            page.keyboard.press("/")
            page.keyboard.type(kind)
            page.keyboard.press("Enter")
            known.append(kind)
    expect(page.locator("#grid li.given")).to_have_count(12)
    page.keyboard.press("-")
    expect(page.locator("#grid li.given")).to_have_count(13)
    page.keyboard.press("Backspace")
    expect(page.locator("#grid li.given")).to_have_count(12)
    wait_until(lambda: [row["label"] for row in rows(folder)] == [kind_of(row["path"]) for row in rows(folder)])
    assert len(rows(folder)) == 12

    page.keyboard.press("Alt+3")  # the guesses of one class, by the quick look
    expect(page.locator("#check-grid button").first).to_be_visible(timeout=SECONDS)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator("#check-words")).to_contain_text("1 wrong")
    page.keyboard.press("Enter")
    wait_until(lambda: len(rows(folder)) > 12)
    page.keyboard.press("Backspace")
    wait_until(lambda: len(rows(folder)) == 12)

    page.keyboard.press("Alt+4")
    expect(page.locator("#train-command")).to_contain_text("npmatch train --data")
    tab_to(page, "train")
    page.keyboard.press("Enter")
    expect(page.locator("#training-words")).to_contain_text("round1")
    expect(page.locator("#rounds tbody tr")).to_contain_text("30 of 30", timeout=SECONDS)
    expect(page.locator("#figure-losses img")).to_be_visible()
    expect(page.locator("#train")).to_be_visible(timeout=SECONDS)

    page.keyboard.press("Alt+5")
    expect(page.locator("#model")).to_have_value("round1")
    expect(page.locator("#error-tiles")).to_contain_text("own confidence on 18 unlabelled images", timeout=SECONDS)
    expect(page.locator("#error-tiles")).to_contain_text("estimated, not measured")
    choose_by_key(page, new_pictures(tmp_path))
    expect(page.locator("#predict-words")).to_have_text("3 predicted.", timeout=SECONDS)
    expect(page.locator("#predictions li")).to_have_count(3)
    tab_to(page, "predictions-csv")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    table = list(csv.DictReader(download.value.path().open()))
    assert [row["path"] for row in table] == [f"new-{kind}.png" for kind in KINDS]
    assert {row["label"] for row in table} <= set(KINDS)
    assert {row["model"] for row in table} == {"round1"}
    page.keyboard.press("Alt+2")
    expect(page.locator("#progress-line")).to_contain_text("by round1")

    page.keyboard.press("Alt+5")
    expect(page.locator("#audit-command")).to_contain_text("round1 -n 60 -o check.csv")
    tab_to(page, "audit-draw")
    page.keyboard.press("Enter")
    expect(page.locator("#grid li").first).to_be_focused(timeout=SECONDS)
    expect(page.locator("#label-title")).to_have_text("Check pictures")
    expect(page.locator("#focus-guess")).to_be_hidden()
    expect(page.locator("#agree")).to_be_hidden()
    assert not any(page.locator(".guess-name").all_inner_texts())
    for number in range(6):
        expect(page.locator("#grid li.given")).to_have_count(number)
        page.keyboard.press(str(1 + known.index(kind_of(page.locator("#focus-name").inner_text()))))
    page.keyboard.press("Backspace")
    expect(page.locator("#grid li.given")).to_have_count(5)
    page.keyboard.press("-")
    finish_by_touch(browser, served.url)
    page.keyboard.press("Alt+5")
    expect(page.locator("#audit-look")).to_be_visible(timeout=SECONDS)
    tab_to(page, "audit-look")
    page.keyboard.press("Enter")
    expect(page.locator("#audit-lines")).to_contain_text("of 18 labelled images were wrong")
    expect(page.locator("#audit-lines")).to_contain_text("90 % interval")
    expect(page.locator("#error-tiles")).to_contain_text("measured on 18 drawn at random")
    assert len(rows(folder)) == 12, "answers of an audit are no labels"
    tab_to(page, "forecast")
    page.keyboard.press("Enter")
    expect(page.locator("#forecast-words")).to_contain_text("round1")
    expect(page.locator("#forecast-lines")).to_contain_text("with 24 labels: about", timeout=SECONDS)
    expect(page.locator("#forecast-lines")).to_contain_text("measured by an audit of 18 labels")
    expect(page.locator("#forecast-classes tbody tr").first).to_contain_text("points")
    expect(page.locator("#forecast-figure")).to_be_visible()
    page.on("dialog", lambda dialog: dialog.accept())
    tab_to(page, "audit-release")
    page.keyboard.press("Enter")
    wait_until(lambda: len(rows(folder)) == 12 + 18)


def finish_by_touch(browser, url):
    """Somebody else answers the rest of an audit on a phone."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"{url}/#results")
    page.locator("#audit-go a").tap()
    expect(page.locator("#grid li")).to_have_count(12)
    for number in range(12):
        expect(page.locator("#grid li.given")).to_have_count(number)
        kind = kind_of(page.locator("#focus-name").inner_text())
        page.locator("#classes button", has_text=kind).tap()
    expect(page.locator("#nothing")).to_contain_text("All pictures are answered")
    expect(page.locator("#audit-done")).to_be_visible()
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    context.close()


def test_a_phone_labels_and_predicts_by_touch_alone(browser, served, folder, tmp_path):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(served.url)
    for kind in KINDS:
        page.locator("#new-class").fill(kind)
        page.locator("#add-class button").tap()
        expect(page.locator("#class-list input").last).to_have_value(kind)
    page.locator("a[href='#label']").last.tap()
    expect(page.locator("#focus-name")).not_to_be_empty()
    for number in range(6):
        expect(page.locator("#grid li.given")).to_have_count(number)
        kind = kind_of(page.locator("#focus-name").inner_text())
        page.locator("#classes button", has_text=kind).tap()
    expect(page.locator("#grid li.given")).to_have_count(6)
    page.locator("nav a[href='#results']").tap()
    expect(page.locator("#error-tiles")).to_contain_text("estimated, not measured", timeout=SECONDS)
    page.locator("#file").set_input_files(new_pictures(tmp_path))
    expect(page.locator("#predict-words")).to_have_text("3 predicted.", timeout=SECONDS)
    assert page.locator("#predictions b").all_inner_texts() == list(KINDS)
    save_picture(folder / "030.png", "red", 30)
    page.locator("nav a[href='#start']").tap()  # which looks for new pictures
    expect(page.locator("#start-lead")).to_contain_text("31 pictures", timeout=SECONDS)
    page.locator("#look-again").tap()
    expect(page.locator("#say")).to_have_text("There are no other pictures.")
    for view in ("start", "label", "check", "train", "results"):
        page.goto(f"{served.url}/#{view}")
        expect(page.locator(f"#view-{view}")).to_be_visible()
        assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390], view
    context.close()


def test_classes_are_renamed_and_merged_and_every_page_follows(page, browser, served, folder):
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{served.url}/#label")
    expect(page.locator("#grid li").first).to_be_focused()
    for name in ("rot", "red"):
        page.keyboard.press("/")
        page.keyboard.type(name)
        page.keyboard.press("Control+Enter")
        expect(page.locator("#classes button", has_text=re.compile(f"^.{name}$"))).to_be_visible()
    wait_until(lambda: [row["label"] for row in rows(folder)] == ["rot", "red"])
    context = browser.new_context()
    other = context.new_page()
    other.goto(f"{served.url}/#start")
    field = other.locator("#class-list input").first
    expect(field).to_have_value("rot")
    other.on("dialog", lambda dialog: dialog.accept())
    field.fill("red")
    field.press("Enter")
    expect(other.locator("#class-list li")).to_have_count(1)
    assert [row["label"] for row in rows(folder)] == ["red", "red"]
    expect(page.locator("#classes button:not(.aside)")).to_have_count(1, timeout=10_000)
    context.close()


def test_names_are_text_and_never_markup(page, served, folder):
    evil = "<img src=x onerror=\"document.title='owned'\">"
    page.goto(f"{served.url}/#label")
    expect(page.locator("#grid li").first).to_be_focused()
    page.locator("#pick").fill(evil)
    page.keyboard.press("Enter")
    expect(page.locator("#grid li.given .tile-given")).to_have_text(evil)
    for view in ("start", "check", "train", "results"):
        page.goto(f"{served.url}/#{view}")
        expect(page.locator(f"#view-{view}")).to_be_visible()
    assert page.locator("img[onerror]").count() == 0
    assert "owned" not in page.title()
