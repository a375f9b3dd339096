"""The parser of job specifications: options of `submit`, lines of a batch, candidates of `dispatch`, bodies over HTTP.

All use the same names and follow the same rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from fleetgate.config.environment import Environment
from fleetgate.config.file import Loaded
from fleetgate.config.units import parse_duration_ms
from fleetgate.core.entities import BATCH
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.jobs.job_record import RETRIES, JobSpec, readable_parts
from fleetgate.jobs.retry_policy import valid_retry_on
from fleetgate.present.request_fields import project_name, session_key, wanted, work_class
from fleetgate.signals.redaction import readable, shown_text

ON_LOST = ("retry", "fail")
_MOST_RETRIES = 1000
_LONGEST_LINE = 1 << 20


class SpecParser:
    """What a specification is read with: where we are, and what the environment and the config file say.

    `here` is the folder of a job that names none: the current folder, unless the job is for another user.
    """

    def __init__(self, host: str, loaded: Loaded | None, here: str = "") -> None:
        self._host = host
        self._loaded = loaded
        self._environment = Environment.read()
        self._here = here or os.getcwd()
        self.notes: dict[str, None] = {}  # what those who submit should know, each once

    def spec(self, said: dict[str, Any]) -> JobSpec:
        """Check what was said of a job. BadRequest says what is wrong, and what is valid."""
        for name in said:
            if name not in _READERS:
                raise BadRequest(f"{shown(name)}: no such key; valid are {', '.join(_READERS)}")
        read = {name: _READERS[name](name, value) for name, value in said.items() if value is not None}
        argv = read.get("command") or read.get("argv") or ()
        if not argv:
            raise BadRequest("nothing to run: a job needs a command, e.g. `fleetgate submit -- make test`")
        any_host = read.get("any_host", False)
        cwd = self._cwd(read.get("cwd", ""), any_host)
        env = read.get("env", {})
        classify = _classify(read.get("classify", ""), list(argv))
        wants = wanted(
            read.get("model", ""), list(argv), self._environment, self._loaded, {**os.environ, **env}, cwd, classify
        )
        if wants.note:
            self.notes[wants.note] = None
        caps, family_caps = self._environment.caps_for("agents")
        project = project_name(read.get("project", ""))
        parts: dict[str, Any] = readable_parts(argv, cwd, env)
        return JobSpec(
            **parts,
            host=self._host,
            models=wants.models,
            any=read.get("any", False),
            any_host=any_host,
            slots=read.get("slots", 1),
            supervisor=read.get("supervisor", False),
            caps=caps,
            family_caps=family_caps,
            project=project,
            work_class=work_class(read.get("class", ""), project, self._loaded, BATCH),
            priority=read.get("priority", 0),
            expires_ms=read.get("expires", 0),
            retries=read.get("retries", RETRIES),
            retry_on=read.get("retry_on", ()),
            on_lost=read.get("on_lost", ON_LOST[0]),
            key=read.get("key", ""),
            name=shown_text(read.get("name", "")),
            role=read.get("role", ""),
            session=session_key(read.get("session", ""), "session "),
            classify=classify,
            timeout_ms=read.get("timeout", 0),
            silence_ms=read.get("silence", 0),
            confirm=read.get("confirm", False),
        )

    def _cwd(self, given: str, any_host: bool) -> str:
        cwd = os.path.abspath(os.path.join(self._here, os.path.expanduser(given)))
        if not any_host and not os.path.isdir(cwd):
            raise BadRequest(f"cwd {shown(cwd)}: there is no such folder")
        if not any_host and not os.access(cwd, os.X_OK):
            raise BadRequest(f"cwd {shown(cwd)}: no permission to enter it")
        return cwd

    def lines(self, lines: Iterable[bytes], what: str) -> Iterator[tuple[int, JobSpec]]:
        """Specifications, one JSON object on each line; what is wrong is told with the line's number."""
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield number, self.spec(_object(line))
            except BadRequest as error:
                raise BadRequest(f"{what}, line {number}: {error}; nothing was submitted") from error


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > _LONGEST_LINE:
        raise BadRequest("longer than 1 MiB")
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"not JSON ({error})") from error
    if not isinstance(found, dict):
        raise BadRequest('not a JSON object, such as {"command": ["make", "test"]}')
    return found


def _classify(given: str, argv: list[str]) -> str:
    if given:
        from fleetgate.signals.agents import agent_for

        agent_for(argv, given)
    return given


# How each key is read.


def _text(name: str, value: object) -> str:
    text = readable(value) if isinstance(value, str) else ""
    if not isinstance(value, str) or len(text) > 200 or not text.isprintable():
        raise BadRequest(f"{name} {shown(str(value))}: valid is text of up to 200 printable characters")
    return text


def _path(name: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise BadRequest(f"{name} {shown(str(value))}: valid is a path")
    return value


def _argv(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise BadRequest(f'{name}: valid is an array of text, for example ["make", "test"]; no shell is used')
    if any("\0" in word for word in value):
        raise BadRequest(f"{name}: a zero byte in an argument")
    return tuple(value)


def _models(name: str, value: object) -> str:
    words = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(word, str) for word in words):
        raise BadRequest(f"{name}: valid is a model, or an array of models")
    return ",".join(str(word) for word in words)


def _number(low: int, high: int) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadRequest(f"{name} {shown(str(value))}: valid is a whole number from {low} to {high}")
        return value

    return read


def _duration(name: str, value: object) -> int:
    try:
        ms = parse_duration_ms(value)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}") from error
    if not ms:
        raise BadRequest(f"{name} {value}: valid is a duration longer than zero, for example 30m")
    return ms


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name}: valid is true or false")
    return value


def _env(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise BadRequest(f"{name}: valid is an object of text, or K=V on the command line")
    for key, text in value.items():
        if not key or "=" in key or "\0" in key + text:
            raise BadRequest(f"{name} {shown(key)}: valid is a name without = and a value without a zero byte")
    return value


def _on_lost(name: str, value: object) -> str:
    if value not in ON_LOST:
        raise BadRequest(f"{name} {shown(str(value))}: valid are {' and '.join(ON_LOST)}")
    return str(value)


def _retry_on(name: str, value: object) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise BadRequest(f"{name}: valid are exit codes and outcomes, for example 1,server_error")
    words = tuple(str(word).strip() for word in given)
    for word in words:
        if not valid_retry_on(word):
            raise BadRequest(
                f"{name} {shown(word)}: valid are exit codes from 1 to 255, server_error and local_error "
                "(limits are waited for anyhow)"
            )
    return words


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "command": _argv,
    "argv": _argv,
    "model": _models,
    "any": _flag,
    "name": _text,
    "project": _text,
    "priority": _number(-100, 100),
    "expires": _duration,
    "retries": _number(0, _MOST_RETRIES),
    "retry_on": _retry_on,
    "on_lost": _on_lost,
    "key": _text,
    "cwd": _path,
    "env": _env,
    "timeout": _duration,
    "silence": _duration,
    "confirm": _flag,
    "any_host": _flag,
    "session": _text,
    "role": _text,
    "classify": _text,
    "slots": _number(1, 10_000),
    "supervisor": _flag,
    "class": _text,
}
