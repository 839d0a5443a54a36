"""The description of the API (OpenAPI 3.1), made from the types of its messages."""

from functools import lru_cache
from typing import Any

import msgspec

from hieropo.serve.columns import RecordColumns
from hieropo.serve.messages import (
    PLAIN_TEXT,
    ActivateRequest,
    DecideRequest,
    Decision,
    Decisions,
    Job,
    Live,
    OfferRequest,
    Problem,
    Ready,
    Reward,
    RewardStatuses,
    Version,
    Versions,
)

_PROBLEMS = {
    "401": "No key, or an unknown one.",
    "403": "The key does not allow it, or the service is asked by another name than that of this machine.",
    "404": "There is nothing of this id or at this path.",
    "408": "The body came too slowly.",
    "409": "The present policy, version or window does not allow it.",
    "413": "The body or the batch is too large.",
    "415": "The body is not declared as JSON.",
    "422": "The request cannot be used, or an id came before with another body.",
    "503": "The record cannot take more now.",
}
_BODY = ("408", "413", "415", "422")
_RECORD = (*_BODY, "503")
_DECIDE = (*_RECORD, "409")
_PATH: dict[str, Any] = {"in": "path", "required": True}
_TEXT_ID = {
    **_PATH, "name": "id",
    "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": PLAIN_TEXT},
}  # fmt: skip
_QUERY_ID = {**_TEXT_ID, "in": "query"}
_PURGE = {
    "name": "purge", "in": "query", "required": False, "schema": {"type": "boolean", "default": True},
    "description": "Remove the versions of the policy that learned from the rows, too.",
}  # fmt: skip

# method, path, id, summary, body, status of success, answer, problems, parameters
_OPERATIONS: tuple[tuple[str, str, str, str, Any, str, Any, tuple[str, ...], tuple[Any, ...]], ...] = (
    ("post", "/v1/decide", "decide", "Decide one request.", DecideRequest, "200", Decision, _DECIDE, ()),
    ("post", "/v1/decide:batch", "decideBatch", "Decide a batch, all requests or none.", list[DecideRequest], "200",
     Decisions, _DECIDE, ()),
    ("post", "/v1/activate", "activateDecision", "Activate a deferred decision.", ActivateRequest, "200", Decision,
     (*_RECORD, "404", "409"), ()),
    ("post", "/v1/rewards", "reward", "Record rewards.", list[Reward], "200", RewardStatuses, _RECORD, ()),
    ("get", "/v1/policies", "versions", "List the versions of the policy.", None, "200", Versions, (), ()),
    ("post", "/v1/policies", "offer", "Check a policy, an archive or a directory of the server, and keep it.",
     OfferRequest, "201", Version, (*_RECORD, "404"), ()),
    ("post", "/v1/policies/{number}:activate", "activate", "Let another version decide.", None, "200", Versions,
     ("404", "409"), ({**_PATH, "name": "number", "schema": {"type": "integer", "minimum": 0, "maximum": 1_000_000}},)),
    ("post", "/v1/refresh", "refresh", "Start a refresh.", None, "202", Job, ("503",), ()),
    ("delete", "/v1/tasks/{id}", "forgetTask", "Start forgetting a task.", None, "202", Job, ("404", "422", "503"),
     (_TEXT_ID, _PURGE)),
    ("delete", "/v1/tasks", "forgetTaskInQuery", "Start forgetting a task, by any id, also one that no path can hold.",
     None, "202", Job, ("422", "503"), (_QUERY_ID, _PURGE)),
    ("delete", "/v1/subjects", "forgetSubjectInQuery", "Start forgetting a subject, by any id.", None, "202", Job,
     ("422", "503"), (_QUERY_ID, _PURGE)),
    ("delete", "/v1/subjects/{id}", "forgetSubject", "Start forgetting a subject.", None, "202", Job,
     ("404", "422", "503"), (_TEXT_ID, _PURGE)),
    ("get", "/v1/jobs/{id}", "job", "Return a job.", None, "200", Job, ("404", "503"), (_TEXT_ID,)),
    ("get", "/livez", "live", "Answer that the process lives.", None, "200", Live, (), ()),
    ("get", "/readyz", "ready", "Return the readiness; 503 while the service cannot record.", None, "200", Ready, (),
     ()),
    ("get", "/metrics", "metrics", "Return the metrics in the format of Prometheus.", None, "200", str, (), ()),
    ("get", "/openapi.json", "openapi", "Return this description.", None, "200", dict[str, Any], (), ()),
)  # fmt: skip
_OPEN = ("live", "ready", "openapi")


@lru_cache(maxsize=8)
def document(
    columns: RecordColumns | None = None, nullable: frozenset[str] = frozenset(), *, keys: bool
) -> dict[str, Any]:
    """Return the description of the API.

    Parameters
    ----------
    columns : RecordColumns, optional
        Of the record: then tasks, contexts and actions are described with their names and types.
    nullable : frozenset of str
        Columns of numbers that may be null.
    keys : bool
        Requests need a key.
    """
    from hieropo import __version__

    types = {str(index): kind for index, kind in enumerate(_types())}
    schemas, components = msgspec.json.schema_components(
        list(types.values()), ref_template="#/components/schemas/{name}"
    )
    schema_of = {id(kind): schema for kind, schema in zip(types.values(), schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for method, path, name, summary, body, status, answer, problems, parameters in _OPERATIONS:
        codes = (*problems, *(() if name in _OPEN else ("401", "403")))
        operation: dict[str, Any] = {
            "operationId": name,
            "summary": summary,
            "responses": {
                status: _content(summary, schema_of[id(answer)], "text/plain" if answer is str else _JSON),
                **{
                    code: _content(_PROBLEMS[code], schema_of[id(Problem)], _PROBLEM)
                    for code in sorted(set(codes))
                },
            },
        }
        if name == "ready":
            operation["responses"]["503"] = _content(
                "The service cannot record.", schema_of[id(Ready)], _JSON
            )
        if body is not None:
            operation["requestBody"] = _body(body, schema_of[id(body)])
        if parameters:
            operation["parameters"] = list(parameters)
        if keys and name not in _OPEN:
            operation["security"] = [{"key": []}]
        paths.setdefault(path, {})[method] = operation
    if columns is not None:
        _name_columns(columns, nullable, components, paths)
    described: dict[str, Any] = {"schemas": components}
    if keys:
        described["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hieropo",
            "version": __version__,
            "summary": "A decision service for many related tasks.",
        },
        "paths": paths,
        "components": described,
    }


def _name_columns(
    columns: RecordColumns, nullable: frozenset[str], components: dict[str, Any], paths: dict[str, Any]
) -> None:
    """Put names and types of the record's columns into the description."""
    schema = columns.request_schema(nullable)
    request, action = components["DecideRequest"], schema["action"]
    fields = request["properties"]
    fields |= {"task": schema["task"], "context": schema["context"]}
    fields["incumbent"] = {"anyOf": [action, {"type": "null"}], "default": None}
    for name in ("eligible", "exclude"):
        kinds = [
            {**kind, "items": action} if kind.get("type") == "array" else kind
            for kind in fields[name]["anyOf"]
        ]
        fields[name] = {**fields[name], "anyOf": kinds}
    if columns.values:
        request["required"] = ["task", "context"]
    task: dict[str, Any] = schema["task"]
    in_path: dict[str, Any] = {"schema": {**task, "minLength": 1} if "pattern" in task else task}
    in_query: dict[str, Any] = {"schema": task}
    if len(columns.task) > 1:
        in_path = in_query = {"content": {_JSON: {"schema": task}}}
    named = {**_PATH, "name": "id"}
    paths["/v1/tasks/{id}"]["delete"]["parameters"] = [{**named, **in_path}, _PURGE]
    paths["/v1/tasks"]["delete"]["parameters"] = [{**named, "in": "query", **in_query}, _PURGE]


_JSON, _PROBLEM = "application/json", "application/problem+json"
ARCHIVES = ("application/x-tar", "application/gzip")


def _types() -> list[Any]:
    kinds: dict[int, Any] = {id(Problem): Problem}
    for operation in _OPERATIONS:
        for kind in (operation[4], operation[6]):
            if kind is not None:
                kinds.setdefault(id(kind), kind)
    return list(kinds.values())


def _body(kind: Any, schema: dict[str, Any]) -> dict[str, Any]:
    content = {_JSON: {"schema": schema}}
    if kind is OfferRequest:
        content |= {media: {"schema": {"type": "string", "format": "binary"}} for media in ARCHIVES}
    return {"required": True, "content": content}


def _content(text: str, schema: dict[str, Any], media: str) -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}
