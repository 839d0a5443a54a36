"""Requests made from the published description: a valid one is never refused as invalid, and no answer is undescribed.

``tests/schemathesis_hooks.py`` says how schemathesis does the same at length.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served_clients import client_of

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
TIMES, IDS = st.text("0123456789TZ:+. -", max_size=20), st.text("abcXYZ019._:-", min_size=1, max_size=30)


def values_of(schema: dict[str, Any], schemas: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Return a strategy of values that are valid by a schema of the description."""
    if "$ref" in schema:
        return values_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return st.one_of([values_of(one, schemas, name) for one in schema["anyOf"]])
    least, most = (
        schema.get("minItems", schema.get("minLength", 0)),
        schema.get("maxItems", schema.get("maxLength", 5)),
    )
    kinds: dict[str, Any] = {
        "null": st.none,
        "boolean": st.booleans,
        "integer": lambda: st.integers(schema["minimum"], schema["maximum"]),
        "number": lambda: st.floats(schema["minimum"], schema["maximum"]),
        "string": lambda: _texts(name).filter(lambda text: least <= len(text) <= most),
        "array": lambda: _lists(schema, schemas, least, min(most, least + 5)),
        "object": lambda: _objects(schema, schemas),
    }
    return kinds[schema["type"]]()


def _texts(name: str) -> st.SearchStrategy[str]:
    return IDS if name.endswith("_id") else TIMES if name == "client_at" else TEXT


def _lists(schema: dict[str, Any], schemas: dict[str, Any], least: int, most: int) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*(values_of(item, schemas) for item in schema["prefixItems"])).map(list)
    return st.lists(values_of(schema["items"], schemas), min_size=least, max_size=most)


def _objects(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = {name: values_of(one, schemas, name) for name, one in schema["properties"].items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: one for name, one in fields.items() if name in required},
        optional={name: one for name, one in fields.items() if name not in required},
    )


@pytest.fixture(scope="module", params=["int", "text"])
def described(
    request: pytest.FixtureRequest, policy: Path, text_policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx.Client, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("described")
    with client_of(policy if request.param == "int" else text_policy, folder) as client:
        yield client, client.get("/openapi.json").json()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(data=st.data())
def test_a_request_that_the_description_allows_is_answered_as_described(
    described: tuple[httpx.Client, dict[str, Any]], data: st.DataObject
) -> None:
    client, document = described
    schemas = document["components"]["schemas"]
    path = data.draw(
        st.sampled_from(["/v1/decide", "/v1/decide:batch", "/v1/rewards", "/v1/activate", "/v1/policies"])
    )
    operation = document["paths"][path]["post"]
    body = data.draw(values_of(operation["requestBody"]["content"]["application/json"]["schema"], schemas))
    answer = client.post(path, json=body)
    assert str(answer.status_code) in operation["responses"], answer.text
    repeated_id = answer.status_code == 422 and "one id names one" in answer.text
    assert repeated_id or answer.status_code in (200, 201, 404, 409), answer.text


def test_the_description_names_the_columns_and_their_types(
    described: tuple[httpx.Client, dict[str, Any]],
) -> None:
    schemas = described[1]["components"]["schemas"]
    request = schemas["DecideRequest"]
    assert request["required"] == ["task", "context"]
    assert list(request["properties"]["context"]["properties"]) == ["age"]
    assert request["properties"]["task"]["type"] in ("integer", "string")
    kinds = [one.get("items", {}).get("type") for one in request["properties"]["eligible"]["anyOf"]]
    assert kinds == ["string", None]
