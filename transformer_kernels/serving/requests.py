# SPDX-License-Identifier: MIT
"""The requests of OpenAI's API that are served. A field that is unknown here is refused, so that
nothing that a client asks for is left out silently."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from ..decode import Parameters
from .errors import RefusedError
from .limits import Limits

# A client that is still sending sees no answer, so that a body of up to so many times the bound is
# read and dropped.
_DROPPED = 16
_USUAL_TOKENS = 16  # of a completion, as OpenAI's
_MOST_STOPS, _LONGEST_STOP = 16, 256
_MOST_LISTED = 1000  # errors of a body; while a million are listed, nobody else is answered

_SHOULD = "Input should be "
_JSON_NAMES = {
    str: "string", list: "array", dict: "object", int: "number", type(None): "null",
}  # fmt: skip


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _as_token(name: str) -> int:
    """Takes a token as JSON writes it."""
    if re.fullmatch("0|[1-9][0-9]{0,9}", name) is None:
        raise PydanticCustomError("token", "Input should have numbers of tokens as names")
    return int(name)


# A field's description is what a refusal says of it, in the words of the server in C++.
Count = Annotated[
    int | None, Field(ge=1, description="a whole number greater than or equal to 1")
]  # fmt: skip
Penalty = Annotated[float, Field(ge=-2, le=2, description="a number from -2 to 2")]
Token = Annotated[int, BeforeValidator(_as_token)]
Stop = Annotated[str, Field(min_length=1, max_length=_LONGEST_STOP)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """A field that is null is one that is not given."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class StreamOptions(_Fields):
    include_usage: bool = False


class Asked(_Fields):
    """The fields that completions and chats have in common."""

    model: str | None = None
    max_tokens: Count = None
    temperature: Annotated[float, Field(ge=0, le=2, description="a number from 0 to 2")] = 1.0
    top_p: Annotated[
        float | None, Field(gt=0, le=1, description="a number greater than 0 and at most 1")
    ] = None
    top_k: Annotated[
        int | None,
        Field(
            ge=1, lt=1 << 31,
            description="a whole number greater than or equal to 1 and below 2^31",
        ),
    ] = None  # fmt: skip
    min_p: Annotated[float | None, Field(ge=0, le=1, description="a number from 0 to 1")] = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[
        float, Field(ge=0.01, le=100, description="a number from 0.01 to 100")
    ] = 1.0
    logit_bias: Annotated[
        dict[Token, Annotated[float, Field(ge=-100, le=100)]],
        Field(description="an object of tokens and numbers from -100 to 100"),
    ] = {}
    seed: Annotated[
        int | None, Field(ge=-(1 << 63), lt=1 << 63, description="a whole number of 64 bits")
    ] = None
    stop: Annotated[list[Stop], Field(max_length=_MOST_STOPS), BeforeValidator(_as_list)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Literal[1] = 1
    user: str | None = None  # has no effect

    @property
    def asked_tokens(self) -> int | None:
        """The most new tokens that are asked for; None where no number is."""
        return self.max_tokens

    @property
    def usual_tokens(self) -> int | None:
        """The most new tokens where no number is asked for; None for as many as there may be."""
        return _USUAL_TOKENS

    @property
    def likeliest(self) -> int | None:
        """The number of likeliest tokens whose log-probabilities are told beside each token's own;
        None where none are told."""
        raise NotImplementedError

    def parameters(self, count: int, stop_tokens: tuple[int, ...]) -> Parameters:
        """The engine's parameters, for so many new tokens."""
        return Parameters(
            max_new_tokens=count, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k,
            min_p=self.min_p, presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty, repetition_penalty=self.repetition_penalty,
            bias=tuple(self.logit_bias.items()), log_probs=self.likeliest,
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            stop=tuple(self.stop), stop_tokens=stop_tokens,
        )  # fmt: skip


class CompletionRequest(Asked):
    prompt: Annotated[
        str | list[Annotated[int, Field(ge=0)]],
        Field(description="a valid string or a list of tokens"),
    ]
    logprobs: Annotated[
        int | None, Field(ge=0, le=5, description="a whole number from 0 to 5")
    ] = None  # fmt: skip

    @property
    def likeliest(self) -> int | None:
        return self.logprobs


class Part(_Fields):
    type: Literal["text"]
    text: str


class Message(_Fields):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = None  # has no effect

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(Asked):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count = None
    logprobs: bool = False
    top_logprobs: Annotated[
        int | None, Field(ge=0, le=20, description="a whole number from 0 to 20")
    ] = None

    @property
    def asked_tokens(self) -> int | None:
        given = [x for x in (self.max_completion_tokens, self.max_tokens) if x is not None]
        return min(given, default=None)

    @property
    def usual_tokens(self) -> int | None:
        return None

    @property
    def likeliest(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            message = "top_logprobs: Input should come with logprobs, which is false"
            raise RefusedError(400, message, "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def plain(self) -> list[dict[str, str]]:
        """The messages as a chat template takes them."""
        return [{"role": message.role, "content": message.text} for message in self.messages]


Kind = TypeVar("Kind", bound=Asked)


async def read(request: Request, kind: type[Kind], limits: Limits) -> Kind:
    """Reads and checks a request's body.

    Raises:
        RefusedError: it is too large, comes too slowly, or is none.
    """
    # A page of another origin can send other types without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RefusedError(415, "the content type is not application/json", "content-type")
    try:
        body = await asyncio.wait_for(_body(request, limits.body_bytes), limits.patience)
    except asyncio.TimeoutError:
        raise RefusedError(408, "the body did not come in time", code="timeout") from None
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal_of(error, kind) from None


async def _body(request: Request, most: int) -> bytes:
    size, body = _declared(request), bytearray()
    if size <= _DROPPED * most:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size <= most:
                body += part
            elif size > _DROPPED * most:
                break
    if size > most:
        raise RefusedError(
            413, f"the body has more than {most} bytes", code="body_too_large",
            headers={"Connection": "close"},
        )  # fmt: skip
    return bytes(body)


def _declared(request: Request) -> int:
    length = request.headers.get("content-length", "0")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _refusal_of(error: ValidationError, kind: type[Asked]) -> RefusedError:
    """Names the field that is wrong, what is wanted and what was there. Where one may be of several
    types, the one that fits best is taken to be meant."""
    if (count := error.error_count()) > _MOST_LISTED:
        return RefusedError(400, f"the body is wrong in {count} places")
    found = error.errors(include_url=False, include_context=False)
    worst = max(found, key=lambda one: len(one["loc"]))  # the first of equals
    loc = worst["loc"][:-2] if worst["loc"][-1:] == ("[key]",) else worst["loc"]
    steps = [str(step) for step in loc if step != "str" and "[" not in str(step)]
    place = ".".join(steps)
    field = kind.model_fields.get(place)
    wanted = worst["msg"]
    if wanted.startswith(_SHOULD):
        if field is not None and field.description is not None:
            wanted = _SHOULD + field.description
        wanted += f", got {_shown(worst['input'])}"
    message = f"{place}: {wanted}" if place else wanted
    return RefusedError(400, message, place or None, worst["type"])


def _shown(given: Any) -> str:
    """A value of JSON. Texts and lists are not repeated, because they may be long."""
    if isinstance(given, float) or (isinstance(given, int) and abs(given) < 1 << 64):
        return json.dumps(given)
    return _JSON_NAMES[type(given)]
