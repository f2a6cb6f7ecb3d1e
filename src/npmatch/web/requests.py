"""What requests to the page of a folder may hold, and how their work is done without blocking others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, StringConstraints
from starlette.exceptions import HTTPException

from npmatch.data.sources.label_table import Answer
from npmatch.errors import NPMatchError
from npmatch.web.app import MAX_PAGE, UserName
from npmatch.web.server import WorkQueue

T = TypeVar("T")
ClassName = Annotated[StrictStr, StringConstraints(min_length=1, max_length=100)]
RoundName = Annotated[StrictStr, StringConstraints(max_length=255)]
SetAside = Literal["none of these", "broken"]
PICTURE_HEADERS = {"cache-control": "private, max-age=600"}


class Strict(BaseModel):
    """A request whose fields are a closed list: all others are refused."""

    model_config = ConfigDict(extra="forbid")


class GivenAnswer(Strict):
    """An answer on the wire: a class, or why there is none; nothing for no answer."""

    label: ClassName | None = None
    aside: SetAside | None = None

    def answer(self) -> Answer | None:
        """As the table holds it."""
        return Answer(self.label or "", "" if self.label else self.aside or "") if self.label or self.aside else None


class MarkRequest(GivenAnswer):
    """Answers for a picture, takes the answer back, or skips it."""

    image: StrictInt
    skip: bool = False
    seen: GivenAnswer = GivenAnswer()  # the answer it had on the user's page
    who: UserName = ""


class UserRequest(Strict):
    """Undoes the last change of one user."""

    who: UserName = ""


class AcceptRequest(Strict):
    """Gives several pictures one label."""

    images: Annotated[list[StrictInt], Field(max_length=MAX_PAGE)]
    label: ClassName
    who: UserName = ""


class ClassRequest(Strict):
    """Adds a class, renames or merges it (`to`), or removes one that no picture has."""

    name: ClassName
    to: ClassName | None = None
    remove: bool = False
    who: UserName = ""


class TrainingRequest(Strict):
    """Starts a round. Nothing else can be chosen from the page."""

    minutes: StrictInt


class RoundRequest(Strict):
    """Names a round."""

    round: RoundName


class RoundMarkRequest(MarkRequest):
    """Answers for a picture of a round's audit."""

    round: RoundName


class RoundUserRequest(UserRequest):
    """Undoes the last change of one user in a round's audit."""

    round: RoundName


class DrawRequest(RoundRequest):
    """Draws pictures for a round's audit."""

    count: StrictInt


class LookRequest(RoundRequest):
    """Computes the error by a round's audit; after an interim look, more may follow."""

    interim: StrictBool = False


async def waiting(queue: WorkQueue, work: Callable[..., T], *arguments: object) -> T:
    """Does blocking work in the queue."""
    with queue.slot():
        return await queue.run(work, *arguments)


async def picture(queue: WorkQueue, work: Callable[..., tuple[bytes, str]], *arguments: object) -> Response:
    """A picture, or 404 without the error's text, which may hold a path on this machine."""
    try:
        content, media_type = await waiting(queue, work, *arguments)
    except NPMatchError as error:
        raise HTTPException(404, "there is no such picture, or it cannot be read") from error
    return Response(content, media_type=media_type, headers=PICTURE_HEADERS)
