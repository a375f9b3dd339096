"""The MCP server over stdin and stdout, with the official `mcp` package."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from fleetgate import __version__
from fleetgate.cli.mcp.tools import Tool, advice, tools
from fleetgate.cli.system_errors import explain
from fleetgate.core.errors import FleetgateError
from fleetgate.present.text import printable_lines

_INSTRUCTIONS = (
    "Fleetgate decides how many agents and model calls may run at once on this machine and these accounts. "
    "Before you start another agent, call `capacity`. If it is red, do not start one"
)
_WITH_SUBMIT = ": call `submit`, and the job starts when a slot is free."
_MOST_AT_ONCE = 20


def serve(submits: str) -> None:
    """Serve until stdin ends."""
    anyio.run(_serve, submits)


async def _serve(submits: str) -> None:
    client = ["an MCP client"]
    known = {tool.name: tool for tool in tools(submits=submits, by=lambda: client[0])}
    listed = [_described(tool) for tool in known.values()]
    threads = anyio.CapacityLimiter(_MOST_AT_ONCE)

    async def on_list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def on_call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = known.get(params.name)
        if tool is None:
            return _failed(f"no tool {params.name!r}; the tools are {', '.join(known)}")
        if ctx.session.client_params is not None:
            client[0] = ctx.session.client_params.client_info.name
        given = {name: value for name, value in (params.arguments or {}).items() if value is not None}
        try:
            said = msgspec.convert(given, tool.arguments, strict=False)
        except msgspec.ValidationError as error:
            valid = ", ".join(tool.arguments.__struct_fields__)
            return _failed(f"{error}. Correct the arguments ({valid}) and call the tool again.")
        try:
            result = await anyio.to_thread.run_sync(tool.call, said, abandon_on_cancel=True, limiter=threads)
        except FleetgateError as error:
            return _failed(f"{error}. {advice(error)}")
        except OSError as error:
            return _failed(f"{explain(error)}. Tell the user.")
        text = msgspec.json.encode(result).decode()
        return types.CallToolResult(
            content=[types.TextContent(text=text)], structured_content=msgspec.to_builtins(result)
        )

    server: Server[Any] = Server(
        "fleetgate",
        version=__version__,
        title="Fleetgate",
        instructions=_INSTRUCTIONS + ("." if submits == "off" else _WITH_SUBMIT),
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=printable_lines(text))], is_error=True)


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_schema(tool.arguments),
        output_schema=_schema(tool.result),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.read_only,
            destructive_hint=not tool.read_only,  # it runs a command, which may do anything
            idempotent_hint=tool.read_only,
            open_world_hint=not tool.read_only,
        ),
    )


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a type. Clients want an object at its root, not a reference to one."""
    (_,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    root = dict(parts.pop(kind.__name__))
    root.pop("title", None)
    return {**root, "$defs": parts} if parts else root
