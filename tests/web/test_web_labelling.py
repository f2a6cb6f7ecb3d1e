"""Undo of annotations: each user's own changes, last first, whatever the other users do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.runs.label_book import LabelBook
from npmatch.web.labelling import MAX_USERS, Annotation, Annotations

CLASSES = ("cat", "dog")
NOTHING, SKIPPED = Annotation(None, False), Annotation(None, True)
CAT, DOG = Annotation("cat", False), Annotation("dog", False)


@pytest.fixture
def annotations(tmp_path):
    return Annotations(LabelBook(tmp_path, CLASSES))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([CAT, DOG, NOTHING, SKIPPED, "undo"])), max_size=12))
def test_any_sequence_of_changes_and_undos_agrees_with_a_list_of_states(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("labels")
    annotations, states = Annotations(LabelBook(folder, CLASSES)), [dict.fromkeys("abc", NOTHING)]
    for name, change in changes:
        if change == "undo":
            assert (annotations.undo() is None) == (len(states) == 1)
            states = states[:-1] or states
        else:
            annotations.set(name, change)
            if states[-1][name] != change:
                states.append(states[-1] | {name: change})
        assert {name: annotations.get(name) for name in "abc"} == states[-1]
    labels = {name: annotation.label for name, annotation in states[-1].items() if annotation.label is not None}
    assert LabelBook(folder, CLASSES).labels == labels


def test_undo_takes_back_the_users_own_changes_only(annotations):
    annotations.set("a.png", CAT, "anna")
    annotations.set("b.png", DOG, "ben")
    assert annotations.undo("anna") == "a.png"
    assert annotations.undo("anna") is None
    assert annotations.book.labels == {"b.png": "dog"}
    assert annotations.undo("ben") == "b.png"


def test_undo_keeps_what_another_user_has_changed_since(annotations):
    annotations.set("a.png", CAT, "anna")
    annotations.set("b.png", CAT, "anna")
    annotations.set("b.png", DOG, "ben")
    assert annotations.undo("anna") == "a.png"
    assert annotations.book.labels == {"b.png": "dog"}


def test_undo_keeps_what_the_command_line_has_changed_since(annotations):
    annotations.set("a.png", CAT)
    LabelBook(annotations.book.path.parent, CLASSES).set("a.png", "dog")
    assert annotations.undo() is None
    assert annotations.book.labels == {"a.png": "dog"}


def test_the_number_of_remembered_users_is_bounded(annotations):
    for user in range(3 * MAX_USERS):
        annotations.set("a.png", (CAT, DOG)[user % 2], str(user))
    assert len(annotations._changes) == MAX_USERS
