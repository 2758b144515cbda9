"""Upper bound on the processor-cache growth that the images sent explain."""

from __future__ import annotations

from loadchaos.core.ledger.rows import ConfigurationRow, EndRow

_CACHE_GB = 4.0
"""vLLM keeps processed images up to --mm-processor-cache-gb in each process that has the cache; this is its default."""
_BYTES_PER_IMAGE_TOKEN = 24 * 1024
"""At most: Qwen-VL's token is 32 x 32 pixels of three colours in two frames, four bytes each."""


class ImageCacheBudget:
    """Bytes that a server process may keep of the images it was sent. Folds end and configuration rows."""

    def __init__(self) -> None:
        self._image_tokens = 0
        self._cache_bytes = _CACHE_GB * 2**30

    def on_end(self, row: EndRow) -> None:
        self._image_tokens += int(row.get("image_tokens") or 0)

    def on_configuration(self, row: ConfigurationRow) -> None:
        configured_gb = (row.get("settings") or {}).get("mm_processor_cache_gb")
        self._cache_bytes = float(_CACHE_GB if configured_gb is None else configured_gb) * 2**30

    @property
    def bytes(self) -> float:
        return min(self._cache_bytes, self._image_tokens * _BYTES_PER_IMAGE_TOKEN)
