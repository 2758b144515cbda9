"""`python -m loadchaos.profile.schema` prints the profile's JSON Schema, which editors use to complete and check."""

from __future__ import annotations

import json

from loadchaos.profile.profile import Profile


def schema() -> str:
    """The schema as it is committed in schemas/profile.json. Shelves judge payloads and behaviours, not this."""
    data = Profile.model_json_schema(by_alias=True)
    data["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
