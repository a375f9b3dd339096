"""The keys of a notification target in `[[notify]]`. Defaults are taken from Settings."""

from __future__ import annotations

from fleetgate.config import value_types as v
from fleetgate.config.schema.shapes import Array, Key, Scalar, Table
from fleetgate.config.settings import TOLD, TOLD_BY_DEFAULT, Notify

TARGET = Table(
    "a notification target",
    (
        Key(
            "name",
            Scalar("name", v.read_target_name),
            "What `fleetgate notify` calls it.",
            '"team"',
            "its number in the file",
        ),
        Key(
            "url",
            Scalar("URL", v.read_target_url),
            "Where to send messages: `https://…` is a webhook that gets JSON; other schemes are those "
            "of Apprise (Telegram, Slack, mail…), with the extra `notify`. Never shown or logged.",
            '"tgram://…"',
        ),
        Key(
            "url_env",
            Scalar("name of an environment variable", v.read_key_env),
            "The variable that holds the URL, instead of `url`.",
            '"TEAM_CHAT_URL"',
        ),
        Key(
            "command",
            Array("array of text", Scalar("text", v.read_argument)),
            "A command to run for each message instead, with the message as JSON on its stdin.",
            '["notify-send", "Fleetgate"]',
        ),
        Key(
            "events",
            Array("array of events", Scalar("event", v.read_told)),
            f"Which events to send: any of {', '.join(f'`{name}`' for name in TOLD)}.",
            '["failed", "login"]',
            ", ".join(f"`{name}`" for name in TOLD_BY_DEFAULT),
        ),
        Key(
            "per_hour",
            Scalar("whole number from 1", v.read_cap),
            "The maximum number of messages per hour; further ones are summed up in one.",
            "20",
            str(Notify().per_hour),
        ),
    ),
)
