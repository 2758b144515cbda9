"""JSON Schema of a profile: `python -m loadchaos.profile.schema`."""

from __future__ import annotations

import json

from loadchaos.profile.profile import Profile


def schema() -> str:
    """JSON Schema of a profile, as committed in schemas/profile.json. It does not cover the options of payloads and
    behaviours: `loadchaos check` checks those.
    """
    data = Profile.model_json_schema(by_alias=True)
    data["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
