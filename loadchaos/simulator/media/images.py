"""Images of a Qwen-VL server: decoded, hashed and counted in tokens. They come as base64 data URLs."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import io
import re
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loadchaos.core.urls import host_and_port
from loadchaos.simulator.media import audio, videos
from loadchaos.simulator.media.picture_reader import read_picture
from loadchaos.simulator.media.processor import AUDIO, VIDEO, DecodedImage, ImageError, Processor

if TYPE_CHECKING:
    from PIL import Image

_CACHE_ITEMS = 4096
_THREADS = 2
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.ASCII)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class ImageReader:
    """Decoder of images and videos, with a cache by content. It works in threads, so that a large image does not delay
    the streams.
    """

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="image")
        self._known: OrderedDict[bytes, DecodedImage | ImageError] = OrderedDict()

    def warm_up(self) -> None:
        self._pool.submit(_pillow)

    async def read(self, url: str) -> DecodedImage:
        """Return the image or video of a data URL. Raises ImageError with vLLM's message and status."""
        loop = asyncio.get_running_loop()
        if url.startswith(VIDEO):
            return await loop.run_in_executor(self._pool, videos.read, url, self._processor)
        if url.startswith(AUDIO):
            return audio.read(url)
        payload = _payload(url)
        return await loop.run_in_executor(self._pool, self._read, payload)

    def _read(self, payload: str) -> DecodedImage:
        try:
            data = base64.b64decode(payload, validate=True)
        except binascii.Error as error:
            raise ImageError("Non-base64 digit found") from error
        key = hashlib.blake2b(data, digest_size=16).digest()
        found = self._known.get(key)
        if found is None:
            try:
                found = self._decode(data)
            except ImageError as error:
                found = error
            self._known[key] = found
            if len(self._known) > _CACHE_ITEMS:
                self._known.popitem(last=False)
        if isinstance(found, ImageError):
            raise found
        return found

    def _decode(self, data: bytes) -> DecodedImage:
        images = _pillow()
        late = self._processor.strict_load
        try:
            image = images.open(io.BytesIO(data))
        except images.DecompressionBombError as error:
            raise ImageError(str(error), 500, "InternalServerError") from error
        except ValueError as error:  # a bomb beside the pixels: real servers pass Pillow's message on unchanged
            raise ImageError(str(error)) from error
        except (OSError, SyntaxError) as error:
            raise ImageError(_failed(error, late)) from error
        try:
            image.load()
        except (OSError, SyntaxError, ValueError) as error:
            # Before 0.25 only an unreadable header was a client error; a body cut off surfaced from the conversion.
            status = 400 if late else 500
            raise ImageError(
                _failed(error, late), status, "BadRequestError" if late else "InternalServerError"
            ) from error
        tokens = self._processor.tokens(image.width, image.height)
        return DecodedImage(self._hash(data, image), image.width, image.height, tokens, read_picture(image))

    def _hash(self, data: bytes, image: Image.Image) -> str:
        digest = hashlib.blake2b(digest_size=32)
        if self._processor.hash_pixels:
            pixels = image.convert("RGB")
            digest.update(f"{pixels.width}x{pixels.height}".encode() + pixels.tobytes())
        else:
            digest.update(data)
        return digest.hexdigest()


def _failed(error: Exception, late: bool) -> str:
    return ("Failed to load image: " if late else "") + _ADDRESS.sub("", str(error))


def _pillow() -> ModuleType:
    """Import Pillow at the first image. vLLM also prints the bomb warning below Pillow's limit; it is switched off
    here.
    """
    from PIL import Image

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    return Image


def _payload(url: str) -> str:
    if not url:
        raise ImageError("multi_modal_data['image'][0] is empty but multi_modal_uuids['image'][0] is missing.")
    found = _DATA_URL.match(url)
    if found is not None:
        if not found.group(2).endswith(";base64"):
            raise ImageError("Only base64 data URLs are supported for now.", 501, "NotImplementedError")
        return url[found.end() :]
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        # This server reaches nothing but its clients: every remote image is one that cannot be fetched.
        host, port = host_and_port(url)
        text = f"Cannot connect to host {host}:{port} ssl:default [Connect call failed ('{host}', {port})]"
        raise ImageError(text, 500, "InternalServerError")
    if parts.scheme == "file":
        text = "Cannot load local files without `--allowed-local-media-path`."
        raise ImageError(text, 500, "InternalServerError")
    raise ImageError("The URL must be either a HTTP, data or file URL.")
