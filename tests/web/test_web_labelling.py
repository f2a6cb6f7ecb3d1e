"""Undo at the desk: everyone's own steps, one after the other, whatever the others do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.runs.label_book import LabelBook
from npmatch.web.labelling import MOST_PEOPLE, Desk, Said

CLASSES = ("cat", "dog")
NOTHING, CAT, DOG, SKIPPED = Said(None, False), Said("cat", False), Said("dog", False), Said(None, True)


@pytest.fixture
def desk(tmp_path):
    return Desk(LabelBook(tmp_path, CLASSES))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([CAT, DOG, NOTHING, SKIPPED, "undo"])), max_size=12))
def test_any_series_of_steps_and_undos_ends_where_a_list_of_states_does(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("desk")
    desk, states = Desk(LabelBook(folder, CLASSES)), [dict.fromkeys("abc", NOTHING)]
    for name, what in steps:
        if what == "undo":
            assert (desk.undo() is None) == (len(states) == 1)
            states = states[:-1] or states
        else:
            desk.say(name, what)
            if states[-1][name] != what:
                states.append(states[-1] | {name: what})
        assert {name: desk.said(name) for name in "abc"} == states[-1]
    labels = {name: said.label for name, said in states[-1].items() if said.label is not None}
    assert LabelBook(folder, CLASSES).labels == labels


def test_everyone_takes_back_their_own_steps_alone(desk):
    desk.say("a.png", CAT, "anna")
    desk.say("b.png", DOG, "ben")
    assert desk.undo("anna") == "a.png"
    assert desk.undo("anna") is None
    assert desk.book.labels == {"b.png": "dog"}
    assert desk.undo("ben") == "b.png"


def test_what_another_has_made_of_an_image_since_stays(desk):
    desk.say("a.png", CAT, "anna")
    desk.say("b.png", CAT, "anna")
    desk.say("b.png", DOG, "ben")
    assert desk.undo("anna") == "a.png"
    assert desk.book.labels == {"b.png": "dog"}


def test_what_the_command_line_has_made_of_an_image_since_stays(desk):
    desk.say("a.png", CAT)
    LabelBook(desk.book.path.parent, CLASSES).set("a.png", "dog")
    assert desk.undo() is None
    assert desk.book.labels == {"a.png": "dog"}


def test_names_without_end_do_not_fill_the_memory(desk):
    for who in range(3 * MOST_PEOPLE):
        desk.say("a.png", (CAT, DOG)[who % 2], str(who))
    assert len(desk._steps) == MOST_PEOPLE
