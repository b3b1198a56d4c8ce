"""What Debezium sends in place of values that it does not have.

A database's log may lack large values that did not change, e.g. those that PostgreSQL stores apart
from their row (TOAST). Debezium then sends a placeholder, in a form that the column's type decides:

- the text itself, or its bytes; in JSON, bytes are in base64, base64url or hexadecimal digits
- a UUID made of the text (version 3)
- an array of the text, of its bytes or of that UUID; an array of numbers, one for each byte
- for hstore, a map from the text to the text
- for PostGIS, a struct with the text's bytes as `wkb`

A nested value that contains the placeholder in another form has no values that could be trusted.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import md5

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
    VariantType,
)

from deltaweave.delta.jvm import json_text
from deltaweave.errors import StatementError

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's default placeholder."""

_SHOWN = 100
_NESTED = (ArrayType, MapType, StructType, VariantType)
_SHORT_ESCAPES = dict(zip('"\\/\b\f\n\r\t', '"\\/bfnrt', strict=True))


@dataclass(frozen=True)
class Placeholder:
    """Debezium's placeholder for unavailable values, in all its forms.

    Attributes:
        code: The bytes of the placeholder.
    """

    code: bytes

    @classmethod
    def of(cls, unavailable: str) -> Placeholder:
        """Return the placeholder that a connector's `unavailable.value.placeholder` makes.

        Raises:
            StatementError: The placeholder is empty, or begins with `hex:` without hexadecimal
                digits after it.
        """
        try:
            is_hex = unavailable.startswith("hex:")
            code = bytes.fromhex(unavailable[4:]) if is_hex else unavailable.encode()
        except ValueError:
            code = b""
        if not code:
            raise StatementError(
                f"unavailable is {unavailable!r}, which is no placeholder.",
                operation="reading changes",
                hint="Give the connector's unavailable.value.placeholder.",
            )
        return cls(code)

    def without(self, texts: Column) -> Column:
        """Return the entries of a map whose values are not the placeholder.

        Args:
            texts: The values of a row by their columns' names, as `text_of` or JSON has them.
        """

        def is_kept(_: Column, value: Column) -> Column:
            return (
                F.when(value.isNull(), True)
                .when(self._is_token(value), False)
                .when(_is_nested(value) & value.rlike(self._nested), False)
                .otherwise(True)
            )

        return F.map_filter(texts, is_kept)

    def problem_of(self, name: str, value: Column, place: Column) -> Column:
        """Return what is wrong with a value that contains the placeholder in another form.

        Args:
            name: The column of the value.
            value: The value's text; null, or not the placeholder itself.
            place: Where the message is.

        Returns:
            A string, or null if the value does not contain it.
        """
        problem = F.concat(
            F.lit(
                f"the value of column {name} contains Debezium's placeholder for values that it "
                "does not have, in a form that no connector is known to send: "
            ),
            F.substring(value, 1, _SHOWN),
            F.lit(" (the message at "),
            place,
            F.lit(")."),
        )
        contains = value.rlike(self._contained) & F.try_parse_json(value).isNotNull()
        return F.when(_is_nested(value) & contains, problem)

    def text_of(self, value: Column, data_type: DataType) -> Column | None:
        """Return the text by which `without` recognizes a value; None if it cannot be one."""
        if isinstance(data_type, StringType):
            return value
        if isinstance(data_type, BinaryType):
            return F.when(value.isin(self.code, self._uuid.bytes), self._text)
        if isinstance(data_type, ArrayType) and isinstance(data_type.elementType, NumericType):
            return F.when(F.size(value) == len(self.code), json_text(value))
        return json_text(value) if isinstance(data_type, _NESTED) else None

    @cached_property
    def _text(self) -> str:
        return self.code.decode(errors="replace")

    @cached_property
    def _uuid(self) -> uuid.UUID:
        """The UUID that Java's `UUID.nameUUIDFromBytes` makes of the bytes."""
        return uuid.UUID(bytes=md5(self.code, usedforsecurity=False).digest(), version=3)

    @cached_property
    def _encoded(self) -> list[str]:
        """The bytes as text."""
        texts = []
        for code in (self.code, self._uuid.bytes):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                padded = encode(code).decode()
                texts += [padded, padded.rstrip("=")]
        return list(dict.fromkeys(texts))

    @cached_property
    def _in_any_case(self) -> list[str]:
        return [self.code.hex(), self._uuid.hex, str(self._uuid)]

    def _is_token(self, value: Column) -> Column:
        tokens = [self._text, *self._encoded, *self._in_any_case]
        longest = max(len(token.encode()) for token in tokens)
        any_case = F.lower(value).isin(self._in_any_case)
        is_token = value.isin(self._text, *self._encoded) | any_case
        return (F.octet_length(value) <= longest) & is_token

    @cached_property
    def _strings(self) -> str:
        """A pattern of the JSON strings that are the placeholder."""
        exact = map(_escaped, (self._text, *self._encoded))
        return f'"(?:{_any(exact)}|(?i:{_any(map(_escaped, self._in_any_case))}))"'

    @cached_property
    def _numbers(self) -> str:
        """A pattern of the JSON array with a number for each byte."""
        # Java's bytes have a sign; a decoder may have removed it.
        codes = [f"(?:{code}|{code - 256})" if code > 127 else str(code) for code in self.code]
        each = [rf'\s*"?{code}(?:\.0+)?"?\s*' for code in codes]
        return r"\[" + ",".join(each) + r"\]"

    @cached_property
    def _nested(self) -> str:
        """A pattern of the JSON arrays and objects that are the placeholder."""
        text = f'"{_escaped(self._text)}"'
        srid = r'"srid"\s*:\s*(?:null|-?\d+)'
        wkb = rf'"wkb"\s*:\s*{self._strings}'
        geometry = rf"(?:{srid}\s*,\s*)?{wkb}(?:\s*,\s*{srid})?"
        forms = (
            rf"\[\s*{self._strings}\s*\]",
            self._numbers,
            rf"\{{\s*(?:{text}\s*:\s*{text}|{geometry})\s*\}}",
        )
        return rf"\A\s*(?:{_any(forms)})\s*\z"

    @cached_property
    def _contained(self) -> str:
        """A pattern of JSON in which the placeholder is."""
        # Spark's parser of JSON ignores what follows a value.
        nested = rf"[\[{{](?s:.*)(?:{self._strings}|{self._numbers})(?s:.*)[\]}}]"
        return rf"\A\s*(?:{self._strings}|{nested})\s*\z"


def _is_nested(text: Column) -> Column:
    """Return whether a text may be JSON that holds strings."""
    return F.substring(F.ltrim(text, F.lit(" \t\r\n")), 1, 1).isin("[", "{", '"')


def _any(patterns: Iterable[str]) -> str:
    return "|".join(patterns)


def _escaped(text: str) -> str:
    """Build a pattern of the ways in which JSON may write a text."""
    return "".join(map(_escaped_character, text))


def _escaped_character(character: str) -> str:
    if character == "_" or (character.isascii() and character.isalnum()):
        return character
    code_units = character.encode("utf-16-be").hex()
    units = [code_units[at : at + 4] for at in range(0, len(code_units), 4)]
    ways = [re.escape("".join(rf"\u{unit}" for unit in units))]
    if character in _SHORT_ESCAPES:
        ways.append(re.escape("\\" + _SHORT_ESCAPES[character]))
    if character not in '"\\':
        ways.append(re.escape(character))
    return f"(?:(?i:{ways[0]})|{_any(ways[1:])})" if len(ways) > 1 else f"(?i:{ways[0]})"
