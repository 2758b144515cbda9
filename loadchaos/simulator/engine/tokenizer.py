"""Tokenizer of the embedded server: small, deterministic, lossless. A common word is one token, with or without the
blank before it; other lower-case words split into pieces of up to three letters; everything else is bytes. Special
tokens in a text become special tokens, as in a real server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_COMMON = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into than them
can only other new some could time these two may then do first any my now such like our over man me even most made after
also did many before must through back years where much your way well down should because each just those people mr how
too little state good very make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take three
small large water fire stone river mountain valley forest field garden house window door table chair paper letter word
line page book story song voice music sound light dark night morning evening summer winter spring autumn rain snow wind
cloud storm sun moon star sky earth sea ship boat road bridge street city village market shop school church tower wall
gate roof floor corner room kitchen bread milk salt sugar apple orange lemon honey butter cheese fish bird horse dog cat
sheep cow wolf bear lion tree leaf root branch flower seed grass corn wheat rice silver gold iron copper glass wood
cloth silk wool thread needle knife fork spoon cup plate bottle basket box bag key lock clock bell wheel engine machine
hammer nail rope chain candle lamp mirror picture color red blue green yellow white black brown gray purple pink hand
foot head heart face eye ear nose mouth hair arm leg finger bone blood skin body mind soul spirit dream hope fear love
anger peace war king queen prince lord lady child mother father brother sister son daughter friend enemy neighbor
stranger doctor teacher student farmer soldier sailor hunter baker smith judge writer painter singer dancer leader
number answer question problem reason idea plan rule law order measure weight length width height depth speed power
energy force heat cold pressure signal message memory cache token model server request response batch image prompt
begin end start stop open close turn move run walk fly swim climb fall rise grow build break cut join pull push carry
throw catch hold keep give send bring find lose win learn teach read write speak listen hear look watch show hide seek
think believe understand remember forget feel touch smell taste eat drink sleep wake live die laugh cry smile dance
play sing paint draw count add divide share sell buy pay save spend help need want try use change wait follow lead meet
short high low wide narrow deep thin thick heavy soft hard rough smooth sharp round flat straight empty full clean dry
wet warm hot cool fresh sweet bitter sour loud quiet fast slow early late near far left north south east west young
strong weak rich poor happy sad angry calm brave wise simple strange common rare true false real free safe ready
always often sometimes seldom again once twice together alone perhaps almost enough quite rather really soon already
four five six seven eight nine ten hundred thousand describe picture system user assistant write tell say please
"""
WORDS: tuple[str, ...] = tuple(dict.fromkeys(_COMMON.split()))

SPECIALS = {
    "<|endoftext|>": 256,
    "<|im_start|>": 257,
    "<|im_end|>": 258,
    "<|vision_start|>": 259,
    "<|vision_end|>": 260,
    "<|image_pad|>": 261,
}
IMAGE_PAD = SPECIALS["<|image_pad|>"]
_SPECIAL_TEXTS = {number: text for text, number in SPECIALS.items()}

_WORD_BASE = 1000
_PIECE_BASE = 10_000
_PIECES = 27**3  # up to three letters, base 27, 0 meaning none
VOCABULARY_SIZE = _PIECE_BASE + 2 * _PIECES

_IDS = {text: _WORD_BASE + 2 * n + blank for n, w in enumerate(WORDS) for blank, text in ((0, w), (1, f" {w}"))}
_TEXTS = {number: text for text, number in _IDS.items()}
_PARTS = re.compile(r"<\|[a-z_]+\|>| ?[a-z]+|[^a-z< ]+|.", re.DOTALL)


def _piece_ids(word: str) -> list[int]:
    blank = word.startswith(" ")
    letters = word[1:] if blank else word
    ids = []
    for start in range(0, len(letters), 3):
        number = 0
        for letter in letters[start : start + 3]:
            number = number * 27 + ord(letter) - 96
        ids.append(_PIECE_BASE + number + (_PIECES if blank and start == 0 else 0))
    return ids


def encode(text: str) -> list[int]:
    """Return the token ids of a text. Raises UnicodeEncodeError for a lone surrogate, which no tokenizer takes."""
    ids: list[int] = []
    known = _IDS
    for part in _PARTS.findall(text):
        number = known.get(part)
        if number is not None:
            ids.append(number)
        elif part in SPECIALS:
            ids.append(SPECIALS[part])
        elif part[-1].isascii() and part[-1].islower() and part.strip(" ").isalpha():
            ids.extend(_piece_ids(part))
        else:
            ids.extend(part.encode())
    return ids


def _token_bytes(number: int) -> bytes:
    if number < 256:
        return bytes((number,)) if number >= 0 else b""
    text = _TEXTS.get(number) or _SPECIAL_TEXTS.get(number)
    if text is not None:
        return text.encode()
    number -= _PIECE_BASE
    if not 0 <= number < 2 * _PIECES:
        return b""
    blank, number = divmod(number, _PIECES)
    letters = ""
    while number:
        number, letter = divmod(number, 27)
        letters = chr(letter + 96) + letters if letter else letters
    return (" " * blank + letters).encode()


def decode(ids: Iterable[int]) -> str:
    """Return the text of token ids. Ids outside the vocabulary are skipped and broken UTF-8 is replaced, as in a real
    server.
    """
    return b"".join(_token_bytes(n) for n in ids).decode("utf-8", "replace")


def block_hashes(ids: Sequence[int], block_size: int, images: Sequence[tuple[int, int, int]] = ()) -> list[int]:
    """Return a hash for each full KV block. Each covers everything before it; `images` are (offset, tokens, hash).
    Hashes of integers do not depend on the process, so both processes and every run agree.
    """
    hashes: list[int] = []
    before = 0
    for start in range(0, len(ids) - block_size + 1, block_size):
        end = start + block_size
        seen = tuple(h for offset, tokens, h in images if offset < end and offset + tokens > start)
        before = hash((before, tuple(ids[start:end]), seen)) & 0x1FFFFFFFFFFFFF
        hashes.append(before)
    return hashes
