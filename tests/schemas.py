"""Data that must fit a schema of schemas/; each schema is checked once, as that takes far longer than one validation."""

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

FOLDER = Path(__file__).parents[1] / "schemas"


@functools.cache
def validator(name: str) -> jsonschema.protocols.Validator:
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    kind = validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def validate(data: Any, name: str = "verdict") -> None:
    """Raise a `jsonschema.ValidationError` where JSON data does not fit the schema of a name."""
    validator(name).validate(data)
