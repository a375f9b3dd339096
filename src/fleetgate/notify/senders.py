"""Ways to send a message: webhook, Apprise, command. Each raises NotSent with a reason that holds no secret."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial

import msgspec

from fleetgate.config.settings import Notify
from fleetgate.core.errors import FleetgateError
from fleetgate.present.text import printable, printable_json, printable_lines

SEND_S = 10.0
COMMAND_S = 30.0

Document = dict[str, object]
Send = Callable[[str, Document], None]  # a title, and the message as JSON


class NotSent(FleetgateError):
    """A message could not be delivered; it is retried later."""


def sender(target: Notify) -> Send:
    """The function that sends to this target. A URL in the environment is looked up for each message."""
    send = partial(_command, list(target.command)) if target.command else partial(_by_url, target)
    return lambda title, document: send(printable(title), _clean(document))


def _clean(document: Document) -> Document:
    """Remove control characters: names and messages of agents may steer a terminal or reverse text."""
    return {**document, "text": printable_lines(str(document["text"]))}


def _encoded(document: Document) -> bytes:
    return printable_json(msgspec.json.encode(document).decode()).encode()


def way(target: Notify) -> str:
    """The way a target is reached, for users, without secrets."""
    if target.command:
        return f"command {target.command[0]}"
    return f"{target.url.partition('://')[0]} URL" if target.url else f"URL in ${target.url_env}"


def _url(target: Notify) -> str:
    url = target.url or os.environ.get(target.url_env, "")
    if "://" not in url:
        raise NotSent(f"${target.url_env} holds no URL" if url else f"${target.url_env} is not set")
    return url


def _by_url(target: Notify, title: str, document: Document) -> None:
    url = _url(target)
    if url.startswith(("http://", "https://")):
        _webhook(url, document)
    else:
        _apprise(url, title, str(document["text"]))


def _webhook(url: str, document: Document) -> None:
    import http.client
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    request = Request(url, _encoded(document), {"Content-Type": "application/json", "User-Agent": "fleetgate"})
    try:
        with urlopen(request, timeout=SEND_S):
            pass
    except HTTPError as error:
        error.close()
        raise NotSent(f"the webhook answered {error.code}") from None
    except (URLError, OSError, ValueError, http.client.HTTPException) as error:
        why = error.reason if isinstance(error, URLError) else type(error).__name__
        raise NotSent(f"the webhook cannot be reached: {why}") from None


def _apprise(url: str, title: str, text: str) -> None:
    import warnings

    try:
        with warnings.catch_warnings():  # about modules that it imports, which is its own business
            warnings.simplefilter("ignore")
            sent = _by_apprise(url, title, text)
    except ImportError:
        from fleetgate.config.install_hint import install_command

        raise NotSent(f"this URL needs the `notify` extra (Apprise): {install_command('notify')}") from None
    except NotSent:
        raise
    except Exception as error:
        raise NotSent(f"Apprise failed: {type(error).__name__}") from None
    if not sent:
        raise NotSent("the service did not take the message")


def _by_apprise(url: str, title: str, text: str) -> bool:
    from apprise import Apprise

    service = Apprise()
    if not service.add(url):
        raise NotSent(f"Apprise does not understand this {url.partition('://')[0]} URL")
    return bool(service.notify(title=title, body=text))


def _command(argv: list[str], title: str, document: Document) -> None:
    env = {**os.environ, "FLEETGATE_EVENT": str(document["event"]), "FLEETGATE_TITLE": title}
    env["FLEETGATE_TEXT"] = str(document["text"])
    try:
        done = subprocess.run(
            argv, input=_encoded(document), env=env, timeout=COMMAND_S, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotSent(f"{argv[0]} did not end within {COMMAND_S:.0f} s") from None
    except OSError as error:
        raise NotSent(f"cannot run {argv[0]}: {error.strerror}") from None
    if done.returncode:
        raise NotSent(f"{argv[0]} ended with {done.returncode}")
