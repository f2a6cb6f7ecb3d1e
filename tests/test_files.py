"""The lock of a folder."""

import pytest

from npmatch.errors import NPMatchError
from npmatch.files import locked


def test_a_folder_with_braces_in_its_name_is_locked_once(tmp_path):
    folder = tmp_path / "{method}-{}"
    with locked(folder), pytest.raises(NPMatchError, match="another process is at work in this folder"), locked(folder):
        pass
    assert not folder.exists()
