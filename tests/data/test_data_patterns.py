"""Files, folders and patterns, compared with the standard library's glob."""

import os
from collections.abc import Callable
from glob import glob
from pathlib import Path

import pytest

from npmatch.data.sources.patterns import find_images, why_unread
from npmatch.data.sources.walk import walk
from npmatch.errors import NPMatchError

FILES = ["a.png", "b.jpg", "notes.txt", "x/c.png", "x/d.gif", "x/y/e.png", "x/y/f.txt", "z/y/g.png", ".h/i.png"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    ["*.png", "**/*.png", "x/*.png", "*/y/*.png", "**/y/*", "x/**/*.*", "**/**/*.png", "**/*", "[ab].*", "?/c.png"],
)
def test_a_pattern_matches_what_glob_matches(folder: Path, pattern: str) -> None:
    found = list(find_images([folder / pattern]))
    expected = {Path(p) for p in glob(str(folder / pattern), recursive=True) if p.endswith((".png", ".jpg", ".gif"))}
    assert set(found) == expected
    assert len(found) == len(expected)
    assert found == list(find_images([folder / pattern]))


def test_folders_that_match_a_pattern_are_searched(folder: Path) -> None:
    names = [str(path.relative_to(folder)) for path in find_images([folder / "*"])]
    assert names == ["a.png", "b.jpg", "x/c.png", "x/d.gif", "x/y/e.png", "z/y/g.png"]
    assert sorted(names) == sorted(str(p.relative_to(folder)) for p in find_images([folder / "**"]))
    assert names == [str(p.relative_to(folder)) for p in find_images([folder])]


def test_relative_patterns_and_files_with_brackets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert list(find_images(["x/*.png"])) == [Path("x/c.png")]
    (folder / "odd[1].png").write_text("")
    assert list(find_images(["odd[1].png", "notes.txt"])) == [Path("odd[1].png"), Path("notes.txt")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("*.webp", "no image matches"),
        ("no/*.png", "no image"),
        ("q", "no such"),
        ("w/empty", "no image in this folder"),
        ("w", r"w: no image that can be read; .*photo\.heic: a picture in a format that is not read"),
        ("w/*", r"no image that can be read; .*photo\.heic"),
    ],
)
def test_a_path_without_images_is_refused_before_the_first_image(folder: Path, name: str, message: str) -> None:
    (folder / "w" / "empty").mkdir(parents=True)
    (folder / "w" / "photo.heic").write_text("")
    with pytest.raises(NPMatchError, match=message):
        next(find_images([folder, folder / name]))


def test_pictures_and_links_that_are_not_read_are_listed_too(folder: Path) -> None:
    for name in ("IMG_1.HEIC", "x/raw.NEF", "x/._2.heic"):
        (folder / name).write_text("")
    (folder / "x" / "circle").symlink_to(folder)  # the walk reaches this folder anyway
    (folder / "z" / "album").symlink_to(folder / "x", target_is_directory=True)
    expected = ["IMG_1.HEIC", "a.png", "b.jpg", "x/c.png", "x/d.gif", "x/raw.NEF", "x/y/e.png", "z/y/g.png"]
    assert [str(path.relative_to(folder)) for path in find_images([folder])] == expected
    assert [path.name for path in find_images([folder / "z"])] == ["album", "g.png"]
    assert [path.name for path in find_images([folder / "x" / "*.*"])] == ["c.png", "d.gif", "raw.NEF"]


@pytest.mark.parametrize("pattern", ["", "**/*.png", "*"])
def test_a_folder_that_cannot_be_read_is_listed_once(
    folder: Path, forbid: Callable[[Path], None], pattern: str
) -> None:
    closed = folder / "x"
    assert closed.is_dir()
    forbid(closed)
    found = list(find_images([folder / pattern, folder / "a.png"]))
    assert found.count(closed) == 1
    assert "x: a folder that cannot be read (Permission denied); change its permissions" in str(why_unread(closed))


def test_a_closed_folder_alone_is_refused_at_once(folder: Path, forbid: Callable[[Path], None]) -> None:
    forbid(folder / "x")
    with pytest.raises(NPMatchError, match=r"x: no image that can be read; .*Permission denied"):
        list(find_images([folder / "x"]))


def test_a_pattern_reaches_any_depth(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "z")
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    Path("deep.png").touch()
    os.chdir(folder)
    assert [path.name for path in find_images([folder / "z" / "**" / "*.png"])] == ["deep.png", "g.png"]
    for inside in reversed(list(walk(folder / "z" / "d"))):  # too deep for shutil.rmtree
        for name in inside.files:
            os.unlink(os.path.join(inside.path, name))
        os.rmdir(inside.path)
