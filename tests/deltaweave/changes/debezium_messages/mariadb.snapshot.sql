-- The tables, and the rows that the connectors' first snapshot finds.

-- A column of every type that the connector can read: it stops at INET6.
CREATE TABLE everything (
    id INT PRIMARY KEY,
    a_tinyint TINYINT,
    a_tinyint_unsigned TINYINT UNSIGNED,
    a_boolean BOOLEAN,
    a_smallint SMALLINT,
    a_smallint_unsigned SMALLINT UNSIGNED,
    a_mediumint MEDIUMINT,
    a_mediumint_unsigned MEDIUMINT UNSIGNED,
    an_int INT,
    an_int_unsigned INT UNSIGNED,
    a_bigint BIGINT,
    a_bigint_unsigned BIGINT UNSIGNED,
    a_decimal_12_3 DECIMAL(12,3),
    a_decimal_20 DECIMAL(20),
    a_decimal_38_10 DECIMAL(38,10),
    a_decimal_unsigned DECIMAL(10,2) UNSIGNED,
    a_float FLOAT,
    a_double DOUBLE,
    a_bit BIT(1),
    a_bit_10 BIT(10),
    a_date DATE,
    a_datetime DATETIME,
    a_datetime_1 DATETIME(1),
    a_datetime_3 DATETIME(3),
    a_datetime_4 DATETIME(4),
    a_datetime_6 DATETIME(6),
    a_timestamp TIMESTAMP NULL,
    a_timestamp_3 TIMESTAMP(3) NULL,
    a_timestamp_6 TIMESTAMP(6) NULL,
    a_time TIME,
    a_time_3 TIME(3),
    a_time_6 TIME(6),
    a_year YEAR,
    a_char CHAR(8),
    a_varchar VARCHAR(40),
    a_text TEXT,
    a_tinytext TINYTEXT,
    a_mediumtext MEDIUMTEXT,
    a_longtext LONGTEXT,
    a_latin1 VARCHAR(40) CHARACTER SET latin1,
    a_binary BINARY(8),
    a_varbinary VARBINARY(40),
    a_tinyblob TINYBLOB,
    a_blob BLOB,
    a_longblob LONGBLOB,
    an_enum ENUM('sad', 'ok', 'happy'),
    a_set SET('a', 'b', 'c'),
    a_json JSON,
    a_point POINT,
    a_geometry GEOMETRY,
    a_uuid UUID
);
INSERT INTO everything VALUES (
    1, 1, 2, TRUE, 3, 4, 5, 6, 7, 8, 9, 10, 12.345, 12345678901234567890,
    1234567890123456789012345678.0123456789, 1.25, 1.5, 0.1, b'1', b'1010101010', '2024-02-29',
    '2024-03-31 01:30:00', '2024-03-31 01:30:00.1', '2024-03-31 01:30:00.123',
    '2024-03-31 01:30:00.1234', '2024-03-31 01:30:00.123456', '2024-03-31 01:30:00',
    '2024-03-31 01:30:00.123', '2024-03-31 01:30:00.123456', '12:34:56', '12:34:56.789',
    '12:34:56.789012', 2024, 'char', 'varchar', 'wörd "quoted" \\ text', 'tiny', 'medium', 'long',
    'wörd', x'00ff10', x'00ff10', x'00ff', x'00ff10', x'00ff10ff', 'ok', 'a,c',
    '{"a": [1, 2.50]}', POINT(1.5, -2), ST_GeomFromText('LINESTRING(0 0, 1 1)'),
    '00112233-4455-6677-8899-aabbccddeeff'
);
INSERT INTO everything (id) VALUES (2);
-- The ends of the types' ranges.
INSERT INTO everything (
    id, a_tinyint, a_tinyint_unsigned, a_boolean, a_smallint, a_smallint_unsigned, a_mediumint,
    a_mediumint_unsigned, an_int, an_int_unsigned, a_bigint, a_bigint_unsigned, a_decimal_12_3,
    a_decimal_20, a_decimal_38_10, a_float, a_double, a_bit, a_bit_10, a_date, a_datetime,
    a_datetime_3, a_datetime_6, a_timestamp, a_timestamp_6, a_time, a_time_6, a_year, a_char,
    a_varchar, a_text, a_varbinary, a_blob, an_enum, a_set
) VALUES (
    3, -128, 255, FALSE, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295,
    -9223372036854775808, 18446744073709551615, -999999999.999, -99999999999999999999,
    -0.0000000001, -1.5e-30, 1.7976931348623157e308, b'0', b'0000000001', '1000-01-01',
    '1000-01-01 00:00:00', '9999-12-31 23:59:59.999', '1969-12-31 23:59:59.999999',
    '1970-01-01 00:00:01', '2038-01-19 03:14:07.999999', '00:00:00', '23:59:59.999999', 1901, '', '',
    '', '', '', 'sad', ''
);

-- Values that have none in Spark: days that do not exist, and times outside of a day.
CREATE TABLE out_of_range (
    id INT PRIMARY KEY,
    a_date DATE,
    a_datetime DATETIME,
    a_datetime_6 DATETIME(6),
    a_time TIME,
    a_time_6 TIME(6),
    a_year YEAR
);
INSERT INTO out_of_range VALUES
    (1, '0000-00-00', '0000-00-00', '0000-00-00', '-12:30:00', '-00:00:00.000001', 0),
    (2, '0001-01-01', '0001-01-01', '0001-01-01', '838:59:59', '-838:59:59.999999', 2155);

-- A key of two columns, whose names are not in lower case.
CREATE TABLE ledger (
    Branch VARCHAR(40),
    number BIGINT,
    amount DECIMAL(12,2),
    booked DATETIME(3),
    seen DATETIME(6),
    note TEXT,
    dropped TEXT,
    PRIMARY KEY (Branch, number)
);
INSERT INTO ledger VALUES
    ('north', 1, 10.00, '2024-01-01 00:00:00.001', '2024-01-01 00:00:00.000001', 'first', 'x'),
    ('north', 2, 20.00, NULL, NULL, NULL, 'x'),
    ('south', 1, -1.50, '1969-12-31 23:59:59.999', '1969-12-31 23:59:59.999999', '', 'x');

-- A table that is emptied.
CREATE TABLE emptied (id INT PRIMARY KEY, note TEXT);
INSERT INTO emptied VALUES (1, 'a'), (2, 'b');

-- A table without a key.
CREATE TABLE without_key (id INT, note TEXT);
INSERT INTO without_key VALUES (1, 'a'), (2, 'b'), (3, 'c');

-- A table that changes before and after the log begins anew.
CREATE TABLE across_logs (id INT PRIMARY KEY, note TEXT);
INSERT INTO across_logs VALUES (1, 'a'), (2, 'b'), (3, 'c');

CREATE TABLE marks (id INT PRIMARY KEY);
INSERT INTO marks VALUES (1);
