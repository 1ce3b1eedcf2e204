"""The description of all routes, as OpenAPI 3.1, and as a page that loads nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.gateway.problems import PROBLEM_JSON
from headrace.gateway.routes import TOKEN_HEADER, GatewayRoute, RouteParameter

__all__ = ["openapi_document", "openapi_page"]

_PROBLEM = {
    "type": "object",
    "required": ["type", "status", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "description": "The kind of problem."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "A sentence for people."},
        "request_id": {"type": "string"},
        "outcome_known": {"type": "boolean", "description": "False if the request may have been carried out."},
    },
}
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2733}
h2{margin-top:2.5rem;border-bottom:1px solid #d5dde5}details{margin:.4rem 0;border:1px solid #d5dde5;border-radius:4px}
summary{padding:.4rem .6rem;cursor:pointer}summary b{display:inline-block;width:4.5rem}
summary code{font-weight:600}details>div{padding:.2rem .8rem .6rem}table{border-collapse:collapse}
td,th{padding:.15rem 1rem .15rem 0;text-align:left;vertical-align:top}small{color:#5b6b7b}
@media(prefers-color-scheme:dark){body{background:#12181f;color:#dbe4ec}details,h2{border-color:#334150}}
"""


def openapi_document(routes: Sequence[GatewayRoute], *, version: str, has_authentication: bool) -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, has_authentication)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Headrace gateway", "version": version},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Signature",
                    "description": "HTTP message signatures (RFC 9421) with hmac-sha256.",
                },
            },
        },
    }
    return document


def openapi_page(document: dict[str, Any]) -> str:
    """Return the description as a page of HTML, with no scripts and nothing from other addresses."""
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_section(path, method, operation))
    body = "".join(f"<h2>{html.escape(name)}</h2>{''.join(sections)}" for name, sections in groups.items())
    title = html.escape(document["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f'<h1>{title}</h1><p>The same as <a href="openapi.json">OpenAPI 3.1</a>.</p>{body}</html>'
    )


def _operation(route: GatewayRoute, has_authentication: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": route.answer.about}
    if route.answer.content:
        answer["content"] = {media: {"schema": schema} for media, schema in route.answer.content.items()}
    if route.answer.has_token:
        about = "The consistency token: a read that is sent with it shows what was written or read here."
        answer["headers"] = {TOKEN_HEADER: {"description": about, "schema": {"type": "string"}}}
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.group],
        "parameters": [*map(_in_path, route.path_parameters), *map(_parameter, route.parameters)],
        "responses": {
            str(route.answer.status): answer,
            "default": {
                "description": "A problem (RFC 9457).",
                "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if route.body is not None:
        content = {media: {"schema": schema} for media, schema in route.body.items()}
        operation["requestBody"] = {"required": True, "content": content}
    if has_authentication:
        operation["security"] = [{"token": []}, {"signature": []}, {}]
    if route.needs is not None:
        operation["description"] = f"Needs the grant `{route.needs.operation} {route.needs.kind}/{route.needs.name}`."
    return operation


def _operation_id(route: GatewayRoute) -> str:
    words = [part.strip("{}").replace(".", "-") for part in route.segments]
    return "-".join([route.method.lower(), *words])


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameter(parameter: RouteParameter) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.about,
        "schema": dict(parameter.schema),
    }
    return {**described, "required": True} if parameter.is_required else described


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = "".join(_row(each) for each in operation["parameters"])
    table = f"<table><tr><th>parameter<th>in<th>meaning{rows}</table>" if rows else ""
    forms = _list_of("Takes", operation.get("requestBody", {}).get("content", ()))
    status, answer = next(iter(operation["responses"].items()))
    answers = _list_of(f"Answers {status} with", answer.get("content", ()))
    needs = html.escape(operation.get("description", "").replace("`", ""))
    return (
        f"<details><summary><b>{method.upper()}</b><code>{html.escape(path)}</code><br>"
        f"<small>{html.escape(operation['summary'])}</small></summary>"
        f"<div>{table}{forms}{answers}<p><small>{needs}</small></p></div></details>"
    )


def _row(parameter: dict[str, Any]) -> str:
    cells = (parameter["name"], parameter["in"], parameter.get("description", ""))
    return "<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in cells)


def _list_of(what: str, names: Iterable[str]) -> str:
    listed = ", ".join(html.escape(name) for name in names)
    return f"<p>{html.escape(what)} {listed}</p>" if listed else ""
