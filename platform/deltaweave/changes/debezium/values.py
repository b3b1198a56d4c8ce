"""Values of a table's types, from the text that JSON has for them.

What the text means may depend on the connector's settings: times count days, milliseconds,
microseconds or nanoseconds, and decimals may be the bytes of a whole number. A message with its
Connect schema names the meaning of each column (`SEMANTIC_UNITS`). Without it, times count what the
caller says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from deltaweave.changes.conversions import holds_type, once

TimeUnit = Literal["micros", "millis", "nanos"]

_DEBEZIUM, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
SEMANTIC_UNITS: Mapping[str, str] = MappingProxyType(
    {
        f"{_DEBEZIUM}Date": "days",
        f"{_CONNECT}Date": "days",
        f"{_DEBEZIUM}Timestamp": "millis",
        f"{_CONNECT}Timestamp": "millis",
        f"{_DEBEZIUM}MicroTimestamp": "micros",
        f"{_DEBEZIUM}NanoTimestamp": "nanos",
    }
)
"""What a number counts since 1970, by the name of its Connect schema."""

MILLIS = f"{_DEBEZIUM}Timestamp"
"""The name of the Connect schema of a number of milliseconds since 1970."""

_NANOS = f"{_DEBEZIUM}NanoTimestamp"

DECIMAL = f"{_CONNECT}Decimal"
"""The name of the Connect schema of a decimal, whose scale is in its parameters."""

JSON_NUMBER = "a number in JSON"
"""What takes the place of `DECIMAL` for a value that is a number, and not the bytes of one."""

CUT = "a number in JSON whose digits may be lost"
"""What takes the place of `DECIMAL` for a number that Spark reads as a double."""

UNCLEAR = "a number in JSON, or bytes that read like one"
"""What takes the place of `DECIMAL` for a value of a row that Spark cannot read exactly."""

SCALED = "io.debezium.data.VariableScaleDecimal"
"""The name of the Connect schema of a decimal that comes with its scale, as `scale` and `value`."""

_NAMES_OF_TYPES = r"^(io\.debezium\.time|org\.apache\.kafka\.connect\.data)\."
_MICROS_IN_A = {
    "days": "86400000000.000",
    "millis": "1000.000",
    "micros": "1.000",
    "nanos": "0.001",
}
_INFINITY_IN_NANOS = ("9223372036854775807", "-9223372036854775808")
_MICROS_IN_A_DAY = 86_400_000_000
_38_DIGITS = f"{10**38 - 1:033X}"
_YEARS_1_TO_9999 = ("-62135596800000000", "253402300799999999")
# From 4713 BC, PostgreSQL's first day, to the year 294246, Spark's last whole one.
_POSSIBLE_YEARS = ("-210866803200000000", "9223371244799999999")

_DATE_FORM = r"[+-]?\d{4,6}-\d+-\d+"
_WITHOUT_ZONE = rf"^{_DATE_FORM}(?:[T ][\d:.]*)?\s*$"
_BELOW_MICROSECONDS = r"\.\d{6}0*[1-9]"
_WHOLE_DAY = rf"^({_DATE_FORM})(?:[T ]00:00(?::00(?:\.0+)?)?)?(?:Z|[+-]0+:0+)?$"
_ANOTHER_ZONE = (
    r"^[+-]?\d{4,6}+-\d++-\d++(?:[T ][\d:.]*+)?+"
    r"(?!\s*(?:Z|UTC|GMT|[+-]0+(?::?0+)*)?\s*$)"
)

TIMES = (TimestampType, TimestampNTZType)

TEXT_TYPES = (StringType, CharType, VarcharType)

_UNPARSED = "_cdc_unread"
_NOT_READ = "not read"
_ITEMS = "array<string>"
TEXTS = "map<string,string>"
"""The type of a JSON object whose values are kept as text."""
ARRAY_OF_NUMBERS = r"^\[\s*(?:null\s*,\s*)*-?\d"
"""A pattern of JSON arrays whose items are numbers."""

# A number with a fraction or an exponent, and more digits than a double holds, also in an array.
_INEXACT_NUMBER = r"(?<![\d.eE+-])-?(?=\d+[.eE])[0.]*(?:\d\.?){16}"


@dataclass(frozen=True)
class ReadValue:
    """A value of a column, and what is wrong with it.

    Attributes:
        value: The value, of the column's type; null if something is wrong with it.
        problem: What is wrong with it (string); null if nothing is.
    """

    value: Column
    problem: Column

    @classmethod
    def fine(cls, value: Column) -> ReadValue:
        """Return a value with which nothing is wrong."""
        return cls(value, F.lit(None).cast("string"))

    def unless(self, problem: Column) -> ReadValue:
        """Return the value, unless there is this problem with it."""
        return ReadValue(F.when(problem.isNull(), self.value), F.coalesce(problem, self.problem))


@dataclass(frozen=True)
class TextValue:
    """A value of a column, as text.

    Attributes:
        location: Where the message is, for errors.
        unit: What a time counts if the message does not say so.
        semantic: The name of the value's Connect schema; None or null if there is none.
        scale: The scale in that schema, or null.
        items: `name` and `parameters` of the Connect schema of an array's items; None or null if
            there is none.
    """

    name: str
    text: Column
    location: Column
    unit: TimeUnit
    semantic: Column | None
    scale: Column
    items: Column | None = None

    def as_type(self, data_type: DataType) -> ReadValue:
        """Return the value in a type, unless its digits may be lost."""
        read = self._as_type(data_type)
        return read if self.semantic is None else read.unless(self._lost_digits(self.semantic))

    def is_cut(self, data_type: DataType) -> Column:
        """Return whether the value is a time that loses digits below the microsecond."""
        if not isinstance(data_type, (DateType, *TIMES)):
            return F.lit(False)
        nanos = F.when(self.text.rlike(r"^-?\d+$"), self.text.try_cast("decimal(20,0)"))
        # Without a schema, the number of a date is one of days.
        in_nanos = F.lit(self.unit == "nanos" and not isinstance(data_type, DateType))
        if self.semantic is not None:
            is_known = self.semantic.isin(*SEMANTIC_UNITS)
            in_nanos = F.when(is_known, self.semantic == _NANOS).otherwise(in_nanos)
        has_rest = in_nanos & (nanos % 1000 != 0)
        is_longer = self.text.rlike(_BELOW_MICROSECONDS)
        return F.coalesce(F.when(nanos.isNull(), is_longer).otherwise(has_rest), F.lit(False))

    def _as_type(self, data_type: DataType) -> ReadValue:
        if isinstance(data_type, TEXT_TYPES):
            return self._unless_precise_decimal(ReadValue.fine(self.text))
        if isinstance(data_type, BinaryType):
            return self._as_bytes(data_type)
        if isinstance(data_type, (DateType, *TIMES)):
            return self._as_time(data_type)
        if isinstance(data_type, (DecimalType, DoubleType, FloatType)):
            return self._as_number(data_type)
        if isinstance(data_type, VariantType):
            return self._checked(F.try_parse_json(self.text), data_type)
        if isinstance(data_type, (StructType, ArrayType, MapType)):
            is_parsed = holds_type(data_type, _is_parsed)
            return self._parsed(data_type) if is_parsed else self._as_nested(data_type)
        if isinstance(data_type, IntegralType):
            return self._unless_precise_decimal(self._as_whole(data_type))
        return self._checked(self.text.try_cast(data_type), data_type)

    def _as_bytes(self, data_type: DataType) -> ReadValue:
        text = F.translate(self.text, "-_", "+/")
        # Spark skips characters that are not base64, and fails where a single one is left.
        is_base64 = text.rlike(r"\A[A-Za-z0-9+/\s]*+=*\s*\z")
        digits = F.length(F.regexp_replace(text, r"[\s=]", ""))
        is_whole = is_base64 & (F.pmod(digits, F.lit(4)) != 1)
        return self._checked(F.when(is_whole, F.unbase64(text)), data_type)

    def _as_whole(self, data_type: DataType) -> ReadValue:
        """Read the value as a whole number, also 5.0 and 5E2, as a DOUBLE is written."""
        number = self.text.try_cast("decimal(38,0)")
        from_double = F.when(fraction_digits(self.text) <= 0, number.try_cast(data_type))
        return self._checked(F.coalesce(self.text.try_cast(data_type), from_double), data_type)

    def _as_nested(self, data_type: DataType) -> ReadValue:
        """Read the value level by level, so that parts are read as columns of their types are.

        Where something is wrong with a part, that part is null: the plan has each part's value once
        and its problem once, at every depth.
        """
        if isinstance(data_type, StructType):
            read = self._as_struct(data_type)
        elif isinstance(data_type, ArrayType):
            read = self._as_array(data_type)
        else:
            assert isinstance(data_type, MapType)
            read = self._as_map(data_type)
        is_wrong = self.text.isNotNull() & read.problem.isNotNull()
        return ReadValue(read.value, F.when(is_wrong, self._message(_is_no(data_type))))

    def _as_struct(self, data_type: StructType) -> ReadValue:
        texts_by_name = F.from_json(self.text, TEXTS)
        texts_by_name = once(texts_by_name, lambda texts: named_as(data_type, texts, or_null=True))

        def parts(texts: Column) -> dict[str, ReadValue]:
            return {
                field.name: self._part(F.try_element_at(texts, F.lit(field.name)), field.dataType)
                for field in data_type
            }

        def value(texts: Column) -> Column:
            fields = [read.value.alias(name) for name, read in parts(texts).items()]
            return F.when(texts.isNotNull(), F.struct(*fields))

        def problem(texts: Column) -> Column:
            first_problem = F.coalesce(*[read.problem for read in parts(texts).values()])
            return F.when(texts.isNull(), _NOT_READ).otherwise(first_problem)

        return ReadValue(once(texts_by_name, value), once(texts_by_name, problem))

    def _as_array(self, data_type: ArrayType) -> ReadValue:
        items = F.from_json(self.text, _ITEMS)
        item_schema = self.items
        value = F.transform(
            items, lambda text: self._part(text, data_type.elementType, item_schema).value
        )
        wrong = F.exists(
            items,
            lambda text: self._part(text, data_type.elementType, item_schema).problem.isNotNull(),
        )
        read = ReadValue(value, F.when(items.isNull() | wrong, _NOT_READ))
        return read if item_schema is None else read.unless(self._lost_digits(item_schema["name"]))

    def _as_map(self, data_type: MapType) -> ReadValue:
        entries = F.from_json(self.text, TEXTS)
        value = F.transform_values(
            entries, lambda _, text: self._part(text, data_type.valueType).value
        )
        wrong = F.exists(
            F.map_values(entries),
            lambda text: self._part(text, data_type.valueType).problem.isNotNull(),
        )
        has_twice = once(  # JSON may have a key twice, which `from_json` keeps
            F.map_keys(entries), lambda keys: F.size(F.array_distinct(keys)) < F.size(keys)
        )
        return ReadValue(value, F.when(entries.isNull() | wrong | has_twice, _NOT_READ))

    def _part(self, text: Column, data_type: DataType, schema: Column | None = None) -> ReadValue:
        """Read a part of the value, by its Connect schema if there is one."""
        part = replace(
            self,
            text=text,
            semantic=None if schema is None else schema["name"],
            scale=F.lit(None) if schema is None else schema["parameters"]["scale"].cast("int"),
            items=None,
        )
        return part.as_type(data_type)

    def _parsed(self, data_type: DataType) -> ReadValue:
        # `from_json` reports values that it cannot read only for a struct.
        wrapped = F.concat(F.lit('{"value":'), self.text, F.lit("}"))
        wrapped_type = StructType().add("value", data_type).add(_UNPARSED, "string")
        parsed = F.from_json(
            wrapped, wrapped_type, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNPARSED}
        )
        is_read = parsed[_UNPARSED].isNull()
        problem = self._message(_is_no(data_type))
        return ReadValue(F.when(is_read, parsed["value"]), F.when(~is_read, problem))

    def _as_time(self, data_type: DataType) -> ReadValue:
        number = self.text.rlike(r"^-?\d+$")
        # Spark reads a time of day without a date as one of today. A year of seven digits is
        # PostgreSQL's infinity (+5877611).
        dated, hint = F.when(self.text.rlike(rf"^{_DATE_FORM}"), self.text), ""
        if isinstance(data_type, DateType):
            whole = F.regexp_replace(self.text, _WHOLE_DAY, "$1")
            dated = F.when(whole.rlike(f"^{_DATE_FORM}$"), whole)
        elif isinstance(data_type, TimestampType):
            # Without a zone, it is another instant in each session time zone.
            dated, hint = F.when(~self.text.rlike(_WITHOUT_ZONE), dated), " with a time zone"
        else:
            # Without its zone, it would be another instant than the digits of other values are.
            dated, hint = F.when(~self.text.rlike(_ANOTHER_ZONE), dated), " in UTC"
        from_text = self._checked(dated.try_cast(data_type), data_type, hint)
        from_number = self._since_1970(data_type)
        return ReadValue(
            F.when(number, from_number.value).when(~number, from_text.value),
            F.when(number, from_number.problem).when(~number, from_text.problem),
        )

    def _since_1970(self, data_type: DataType) -> ReadValue:
        """Read the value as a number of units since 1970."""
        given: str = "days" if isinstance(data_type, DateType) else self.unit
        if self.semantic is None:
            micros = self._micros(_factor(given))
            is_fine, problem = _between(micros, _YEARS_1_TO_9999), self._too_far(given)
        else:
            micros, is_fine, problem = self._by_semantic(self.semantic, given)
            if isinstance(data_type, DateType):
                has_time = is_fine & (F.pmod(micros, F.lit(_MICROS_IN_A_DAY)) != 0)
                problem = F.when(has_time, " has a time of day, and the column has days").otherwise(
                    problem
                )
                is_fine = is_fine & ~has_time
        value = F.when(is_fine, of_micros(micros.cast("bigint"), data_type))
        return ReadValue(value, F.when(~is_fine, self._message(problem)))

    def _by_semantic(self, semantic: Column, given: str) -> tuple[Column, Column, Column]:
        """Return the microseconds since 1970, whether they are possible, and the problem if not."""
        factors = F.create_map(
            *[
                part
                for name, unit in SEMANTIC_UNITS.items()
                for part in (F.lit(name), _factor(unit))
            ]
        )
        known = F.try_element_at(factors, semantic)
        is_other = known.isNull() & semantic.rlike(_NAMES_OF_TYPES)
        micros = self._micros(F.coalesce(known, _factor(given)))
        fits = F.when(known.isNull(), _between(micros, _YEARS_1_TO_9999)).otherwise(
            _between(micros, _POSSIBLE_YEARS)
        )
        problem = (
            F.when(known.isNotNull(), " is no time that the table can hold (is it infinity?)")
            .when(is_other, F.concat(F.lit(" is a "), semantic))
            .otherwise(self._too_far(given))
        )
        return micros, fits & ~F.coalesce(is_other, F.lit(False)), problem

    def _too_far(self, given: str) -> Column:
        others = [
            F.when(_between(self._micros(_factor(unit)), _YEARS_1_TO_9999), F.lit(unit))
            for unit in _MICROS_IN_A
            if unit != given
        ]
        fits = F.coalesce(F.nullif(F.concat_ws(", ", *others), F.lit("")), F.lit("no other unit"))
        return F.concat(F.lit(f" is outside the years 1 to 9999 in {given}, and inside in "), fits)

    def _micros(self, factor: Column) -> Column:
        number = F.when(~self.text.isin(*_INFINITY_IN_NANOS), self.text.try_cast("decimal(20,0)"))
        return F.floor(number * factor).cast("decimal(33,0)")

    def _as_number(self, data_type: DataType) -> ReadValue:
        """Read the value as a number, also of `decimal.handling.mode=precise`."""
        with_scale = F.when(
            self.text.startswith("{"), F.from_json(self.text, "scale INT, value STRING")
        )
        is_precise = F.lit(False)
        if self.semantic is not None:
            is_precise = self.semantic.eqNullSafe(F.lit(DECIMAL))
        unscaled = _unscaled_digits(F.when(is_precise, self.text).otherwise(with_scale["value"]))
        scale = F.when(is_precise, self.scale).otherwise(with_scale["scale"])
        decoded = F.concat(unscaled, F.lit("E"), -scale)
        text = F.when(is_precise | with_scale.isNotNull(), decoded).otherwise(self.text)
        value = text.try_cast(data_type)
        if isinstance(data_type, DecimalType):
            scale_of_type = data_type.scale
            value = once(  # the text's plan is long, and is there once
                text,
                lambda text: F.when(
                    fraction_digits(text) <= scale_of_type, text.try_cast(data_type)
                ),
            )
        else:  # Spark takes a number beyond the type's range for infinity.
            is_beyond = (F.abs(value) == float("inf")) & text.rlike(r"\d")
            value = F.when(~F.coalesce(is_beyond, F.lit(False)), value)
        return self._checked(
            value,
            data_type,
            "; if the connector sends decimals as bytes (decimal.handling.mode=precise), let it "
            "send their schema (schemas.enable=true), or set decimal.handling.mode=string",
        )

    def _unless_precise_decimal(self, read: ReadValue) -> ReadValue:
        if self.semantic is None:
            return read
        is_bytes = self.semantic.isin(DECIMAL, SCALED) & self.text.isNotNull()
        is_precise = F.coalesce(is_bytes, F.lit(False))
        problem = F.lit(
            " is a decimal's bytes: give the column the type DECIMAL, or set "
            "decimal.handling.mode=string"
        )
        return ReadValue(
            F.when(~is_precise, read.value),
            F.when(is_precise, self._message(problem)).otherwise(read.problem),
        )

    def checked(self, value: Column, data_type: DataType, failed: Column) -> ReadValue:
        """Return a value that was read as a type, with a problem where that failed."""
        return ReadValue(value, F.when(failed, self._message(_is_no(data_type))))

    def _checked(self, value: Column, data_type: DataType, hint: str = "") -> ReadValue:
        failed = self.text.isNotNull() & value.isNull()
        return ReadValue(value, F.when(failed, self._message(_is_no(data_type, hint))))

    def _lost_digits(self, semantic: Column) -> Column:
        """Return what is wrong with a number whose digits may be lost; null for others."""
        problem = F.lit(
            " is a number, and Spark reads 15 digits of it: use decimal.format=BASE64 or "
            "decimal.handling.mode=string"
        )
        unclear = F.lit(
            " may be bytes or a number, because its row has too long a value, or an object with a "
            "key twice: use decimal.handling.mode=string"
        )
        is_cut = (semantic == CUT) | ((semantic == JSON_NUMBER) & self.text.rlike(_INEXACT_NUMBER))
        is_unclear = semantic == UNCLEAR
        return F.when(is_cut, self._message(problem)).when(is_unclear, self._message(unclear))

    def _message(self, problem: Column) -> Column:
        return F.concat(
            F.lit("the value "),
            F.substring(self.text, 1, 100),
            F.lit(f" of column {self.name}"),
            problem,
            F.lit(" (the message at "),
            self.location,
            F.lit(")."),
        )


def _is_parsed(data_type: DataType) -> bool:
    """Return whether only Spark's parser reads values of a type within others."""
    if isinstance(data_type, MapType):
        return not isinstance(data_type.keyType, StringType)
    return isinstance(data_type, VariantType)


def or_error(value: Column, problem: Column) -> Column:
    """Return a value; evaluating it is an error if there is a problem."""
    return F.when(problem.isNull(), value).otherwise(F.raise_error(problem))


def _is_no(data_type: DataType, hint: str = "") -> Column:
    return F.lit(f" is no {data_type.simpleString().upper()}{hint}")


def _factor(unit: str) -> Column:
    return F.lit(_MICROS_IN_A[unit]).cast("decimal(14,3)")


def _between(value: Column, bounds: tuple[str, str]) -> Column:
    low, high = (F.lit(bound).cast("decimal(33,0)") for bound in bounds)
    return F.coalesce(value.between(low, high), F.lit(False))


def of_micros(micros: Column, data_type: DataType) -> Column:
    """Convert microseconds since 1970 to a time or a day."""
    if isinstance(data_type, TimestampType):
        return F.timestamp_micros(micros)
    if isinstance(data_type, DateType):
        days = (micros - F.pmod(micros, F.lit(_MICROS_IN_A_DAY))) / F.lit(_MICROS_IN_A_DAY)
        return F.date_from_unix_date(days.cast("int"))
    # A time without a zone is not an instant: converting an instant would shift it by the session's
    # zone.
    epoch = F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'")
    return epoch + F.expr("INTERVAL '0.000001' SECOND") * micros


def _unscaled_digits(base64: Column) -> Column:
    """Decode the digits of a number from its two's complement in base64.

    Null for numbers of more than 38 digits, which no decimal of Spark holds.
    """
    digits = F.hex(F.unbase64(base64))
    is_negative = F.substring(digits, 1, 1) >= "8"
    inverted = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    unsigned = F.when(is_negative, inverted).otherwise(digits)
    padded = F.when(F.length(unsigned) <= 32, F.lpad(unsigned, 33, "0"))
    fits = F.when(is_negative, padded < _38_DIGITS).otherwise(padded <= _38_DIGITS)
    padded = F.when(fits, padded)
    # In two's complement, -1 is all ones: a negative number is one below its inverted digits.
    magnitude = F.when(is_negative, 1).otherwise(0).cast("decimal(38,0)")
    for at in (1, 12, 23):
        part = F.conv(F.substring(padded, at, 11), 16, 10).cast("decimal(15,0)")
        power = F.lit(str(16 ** (33 - at - 10))).cast("decimal(38,0)")
        magnitude = (magnitude + (part * power).cast("decimal(38,0)")).cast("decimal(38,0)")
    sign = F.when(is_negative, "-").otherwise("")
    return F.concat(sign, magnitude.cast("string"))


def named_as(wanted: StructType, row: Column, *, or_null: bool = False) -> Column:
    """Return a row's entries of the wanted columns, by their names in any case.

    If several entries may be a column's, evaluating it is an error, or it is null (`or_null`).
    """
    names = F.create_map(*[F.lit(part) for name in wanted.names for part in (name.lower(), name)])

    def is_wanted(name: Column, _: Column) -> Column:
        folded = F.try_element_at(names, F.lower(name))
        # A column of exactly this name is preferred.
        return folded.isNotNull() & ((folded == name) | ~F.map_contains_key(row, folded))

    def renamed(found: Column) -> Column:
        return F.transform_keys(found, lambda name, _: F.try_element_at(names, F.lower(name)))

    def unless_ambiguous(found: Column) -> Column:
        folded = F.transform(F.map_keys(found), F.lower)
        return F.when(F.size(F.array_distinct(folded)) == F.size(folded), renamed(found))

    found = F.map_filter(row, is_wanted)
    return once(found, unless_ambiguous) if or_null else renamed(found)


def fraction_digits(text: Column) -> Column:
    """Count the digits of a number after its decimal point, without zeros at its end.

    Less than 0 if there are zeros before the point alone.
    """
    number = F.upper(F.trim(text))
    exponent = F.coalesce(
        F.try_element_at(F.split(number, "E"), F.lit(2)).try_cast("int"), F.lit(0)
    )
    mantissa = F.split_part(number, F.lit("E"), F.lit(1))
    digits = F.regexp_replace(mantissa, "[^0-9]", "")
    significant = F.rtrim(digits, F.lit("0"))
    zeros = F.length(digits) - F.length(significant)
    after_point = F.length(F.split_part(mantissa, F.lit("."), F.lit(2)))
    return F.when(significant == "", 0).otherwise(after_point - zeros - exponent)
