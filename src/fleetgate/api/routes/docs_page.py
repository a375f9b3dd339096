"""`/docs`: the contract for people, made of the same document as `/openapi.json`. No script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
body { overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
details { border-top: 1px solid var(--line); padding: .35rem 0; }
summary { cursor: pointer; } summary b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; margin: .5rem 0; }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top; }
th { color: var(--dim); font-weight: normal; } .dim { color: var(--dim); }
"""


def docs_page(document: dict[str, Any]) -> str:
    """One page: every route with its parameters, body and answers, then every shape."""
    info = document["info"]
    routes = [
        _route(method, path, operation)
        for path, operations in sorted(document.get("paths", {}).items())
        for method, operation in operations.items()
        if isinstance(operation, dict) and "responses" in operation
    ]
    schemas = document.get("components", {}).get("schemas", {})
    shapes = [_shape(name, schema) for name, schema in sorted(schemas.items())]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(info["title"])}</title><link rel="stylesheet" href="/docs.css">'
        f"<h1>{escape(info['title'])}</h1><p>{escape(info.get('description', ''))} "
        '<a href="/openapi.json">openapi.json</a></p>'
        f"<h2>Routes</h2>{''.join(routes)}<h2>Shapes</h2>{''.join(shapes)}</html>\n"
    )


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = [
        (each["name"], each["in"], _type(each.get("schema", {})), each.get("description", ""))
        for each in operation.get("parameters", [])
    ]
    parts = [_table(("parameter", "in", "type", ""), rows)] if rows else []
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body ({escape(kind)}): {_type(media.get('schema', {}))}</p>")
    answers = []
    for status, answer in sorted(operation["responses"].items()):
        shapes = ", ".join(_type(media.get("schema", {})) for media in answer.get("content", {}).values())
        answers.append((status, shapes, answer.get("description", "")))
    parts.append(_table(("status", "answer", ""), answers))
    summary = escape(operation.get("summary", ""))
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
        f'<span class="dim">{summary}</span></summary>{"".join(parts)}</details>'
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (key if key in required else f"{key}?", _type(value), value.get("description", ""))
        for key, value in schema.get("properties", {}).items()
    ]
    text = escape(schema.get("description", ""))
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> <span class="dim">{text}</span></summary>'
        f"{_table(('field', 'type', ''), rows)}</details>"
    )


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Cells are escaped, but for types, which are links."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = ""
    for row in rows:
        cells = (cell if title in ("type", "answer") else escape(cell) for title, cell in zip(titles, row, strict=True))
        body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}"><code>{name}</code></a>'
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return " or ".join(_type(each) for each in schema[word])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(each))}</code>" for each in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    limits = [
        f"{sign} {schema[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in schema
    ]
    return escape(" ".join([str(schema.get("format") or kind), *limits]))
