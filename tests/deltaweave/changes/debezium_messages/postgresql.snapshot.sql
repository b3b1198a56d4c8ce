-- The tables, and the rows that the connectors' first snapshot finds.
CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN positive AS INT CHECK (value > 0);

-- A column of every type.
CREATE TABLE everything (
    id INT PRIMARY KEY,
    a_smallint SMALLINT,
    an_int INT,
    a_bigint BIGINT,
    a_domain POSITIVE,
    a_numeric_12_3 NUMERIC(12,3),
    a_numeric_20 NUMERIC(20),
    a_numeric_38_10 NUMERIC(38,10),
    a_numeric NUMERIC,
    a_real REAL,
    a_double DOUBLE PRECISION,
    a_money MONEY,
    a_text TEXT,
    a_varchar VARCHAR(40),
    a_char CHAR(8),
    a_citext CITEXT,
    a_bytea BYTEA,
    a_boolean BOOLEAN,
    a_date DATE,
    a_time TIME,
    a_time_0 TIME(0),
    a_time_3 TIME(3),
    a_timetz TIMETZ,
    a_timestamp TIMESTAMP,
    a_timestamp_0 TIMESTAMP(0),
    a_timestamp_3 TIMESTAMP(3),
    a_timestamp_4 TIMESTAMP(4),
    a_timestamptz TIMESTAMPTZ,
    a_timestamptz_3 TIMESTAMPTZ(3),
    an_interval INTERVAL,
    a_uuid UUID,
    a_json JSON,
    a_jsonb JSONB,
    an_xml XML,
    an_hstore HSTORE,
    an_inet INET,
    a_cidr CIDR,
    a_macaddr MACADDR,
    a_macaddr8 MACADDR8,
    an_int4range INT4RANGE,
    an_int8range INT8RANGE,
    a_numrange NUMRANGE,
    a_daterange DATERANGE,
    a_tsrange TSRANGE,
    a_tstzrange TSTZRANGE,
    an_enum MOOD,
    a_point POINT,
    a_bit BIT(1),
    a_bit_10 BIT(10),
    a_varbit VARBIT(20),
    a_tsvector TSVECTOR,
    an_ltree LTREE,
    an_oid OID,
    smallints SMALLINT[],
    ints INT[],
    bigints BIGINT[],
    numerics NUMERIC(10,2)[],
    reals REAL[],
    doubles DOUBLE PRECISION[],
    texts TEXT[],
    varchars VARCHAR(20)[],
    byteas BYTEA[],
    uuids UUID[],
    dates DATE[],
    times TIME[],
    timestamps TIMESTAMP[],
    timestamptzs TIMESTAMPTZ[],
    booleans BOOLEAN[],
    inets INET[],
    jsonbs JSONB[],
    hstores HSTORE[],
    enums MOOD[]
);
INSERT INTO everything VALUES (
    1, 1, 2, 3, 4, 12.345, 12345678901234567890, 1234567890123456789012345678.0123456789, 3.14159,
    1.5, 0.1, 12.34, 'wörd "quoted" \ text', 'varchar', 'char', 'Citext', '\x00ff10', true,
    '2024-02-29', '12:34:56.789012', '12:34:56', '12:34:56.789', '12:34:56.789012+02',
    '2024-03-31 01:30:00.123456', '2024-03-31 01:30:00', '2024-03-31 01:30:00.123',
    '2024-03-31 01:30:00.1234', '2024-03-31 01:30:00.123456+02', '2024-03-31 01:30:00.123+02',
    '1 year 2 months 3 days 04:05:06.7', '00112233-4455-6677-8899-aabbccddeeff',
    '{"a": [1, 2.50]}', '{"b": {"c": null}}', '<a b="c">d</a>', 'a=>1, b=>NULL',
    '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05',
    '[1,5)', '[10,)', '(1.5,2.5]', '[2024-01-01,2024-02-01)',
    '[2024-01-01 00:00,2024-01-02 00:00)', '[2024-01-01 00:00+00,2024-01-02 00:00+00)',
    'ok', '(1.5,-2)', B'1', B'1010101010', B'101', 'a:1 fat:2 cat:3', 'top.science.stars', 77,
    '{1,2}', '{1,NULL}', '{1,9223372036854775807}', '{1.25,-3.50}', '{1.5}', '{0.1,-0.5}',
    '{a,NULL,"b,c"}', '{v}', '{"\\x00ff"}', '{00112233-4455-6677-8899-aabbccddeeff}',
    '{2024-02-29}', '{12:34:56.789012}', '{"2024-03-31 01:30:00.123456"}',
    '{"2024-03-31 01:30:00.123456+02"}', '{t,f}', '{192.168.0.1}', '{"{\"a\": 1}"}',
    '{"a=>1"}', '{sad,happy}'
);
INSERT INTO everything (id) VALUES (2);
-- The ends of the types' ranges.
INSERT INTO everything (
    id, a_smallint, an_int, a_bigint, a_numeric_12_3, a_numeric_20, a_numeric_38_10, a_numeric,
    a_real, a_double, a_money, a_text, a_varchar, a_char, a_bytea, a_date, a_time, a_time_0,
    a_timestamp, a_timestamp_3, a_timestamptz, an_interval, ints, texts, doubles, a_bit_10
) VALUES (
    3, -32768, -2147483648, -9223372036854775808, -999999999.999, -99999999999999999999,
    -0.0000000001, 12345678901234567890123456789012345678.5, 'NaN', '-Infinity', -0.01, '', '', '',
    '', '0001-01-01', '00:00:00', '23:59:59', '1969-12-31 23:59:59.999999',
    '9999-12-31 23:59:59.999', '1900-01-01 00:00:00+00', '-1 day', '{}', '{}', '{NaN,Infinity}',
    B'0000000001'
);

-- Times that have no value in Spark.
CREATE TABLE out_of_range (
    id INT PRIMARY KEY,
    a_date DATE,
    a_timestamp TIMESTAMP,
    a_timestamptz TIMESTAMPTZ,
    a_numeric NUMERIC
);
INSERT INTO out_of_range VALUES
    (1, 'infinity', 'infinity', 'infinity', 1),
    (2, '-infinity', '-infinity', '-infinity', 2);

-- Values that PostgreSQL keeps apart from their row, and logs only if they change. Each is small,
-- but together they are too large for a row. The connector has no placeholder for some types, and
-- sends null for their values; if such a column were NOT NULL, it would stop.
CREATE TABLE toasted (
    id INT PRIMARY KEY,
    note TEXT,
    a_text TEXT,
    a_varchar VARCHAR(400),
    a_char CHAR(400),
    a_citext CITEXT,
    a_bytea BYTEA,
    a_json JSON,
    a_jsonb JSONB,
    an_xml XML,
    an_hstore HSTORE,
    an_ltree LTREE,
    a_tsvector TSVECTOR,
    a_varbit VARBIT(3000),
    a_numeric NUMERIC,
    smallints SMALLINT[],
    ints INT[],
    bigints BIGINT[],
    numerics NUMERIC(10,2)[],
    reals REAL[],
    doubles DOUBLE PRECISION[],
    texts TEXT[],
    varchars VARCHAR(20)[],
    byteas BYTEA[],
    uuids UUID[],
    dates DATE[],
    times TIME[],
    timestamps TIMESTAMP[],
    timestamptzs TIMESTAMPTZ[],
    booleans BOOLEAN[],
    inets INET[],
    jsonbs JSONB[],
    hstores HSTORE[],
    enums MOOD[]
) WITH (toast_tuple_target = 128);
DO $$
DECLARE name TEXT;
BEGIN
    FOR name IN SELECT attname FROM pg_attribute WHERE attrelid = 'toasted'::regclass
            AND attnum > 2 AND attstorage <> 'p' LOOP
        EXECUTE format('ALTER TABLE toasted ALTER %I SET STORAGE EXTERNAL', name);
    END LOOP;
END $$;
CREATE PROCEDURE insert_toasted(first INT, last INT) LANGUAGE SQL AS $$
    INSERT INTO toasted SELECT
        i, 'as it was', repeat('t', 2000), repeat('v', 60), repeat('c', 60), repeat('I', 60),
        decode(repeat('00ff', 30), 'hex'), ('"' || repeat('j', 60) || '"')::json,
        jsonb_build_object('i', i, 'text', repeat('x', 60)),
        ('<a>' || repeat('x', 60) || '</a>')::xml, hstore('key', repeat('h', 60)),
        repeat('l', 60)::ltree, ('a ' || repeat('z', 60))::tsvector, repeat('10', 200)::varbit,
        repeat('9', 120)::numeric, array_fill(i::smallint, ARRAY[30]), array_fill(i, ARRAY[12]),
        array_fill(i::bigint, ARRAY[6]), array_fill(1.25::numeric, ARRAY[6]),
        array_fill(1.5::real, ARRAY[12]), array_fill(0.25::double precision, ARRAY[6]),
        array_fill('wörd'::text, ARRAY[6]), array_fill('v'::varchar, ARRAY[8]),
        array_fill('\x00ff'::bytea, ARRAY[8]),
        array_fill('00112233-4455-6677-8899-aabbccddeeff'::uuid, ARRAY[3]),
        array_fill('2024-02-29'::date, ARRAY[12]), array_fill('12:34:56.789'::time, ARRAY[6]),
        array_fill('2024-03-31 01:30:00.123456'::timestamp, ARRAY[6]),
        array_fill('2024-03-31 01:30:00.123456+00'::timestamptz, ARRAY[6]),
        array_fill(true, ARRAY[60]), array_fill('192.168.0.1'::inet, ARRAY[5]),
        array_fill('{"a": 1}'::jsonb, ARRAY[4]), array_fill('a=>1'::hstore, ARRAY[4]),
        array_fill('happy'::mood, ARRAY[12])
    FROM generate_series(first, last) AS i
$$;
CALL insert_toasted(1, 2);

-- A key of two columns, whose names are not in lower case, and whole rows in the log.
CREATE TABLE ledger (
    "Branch" TEXT,
    number BIGINT,
    amount NUMERIC(12,2),
    note TEXT,
    dropped TEXT,
    PRIMARY KEY ("Branch", number)
);
ALTER TABLE ledger REPLICA IDENTITY FULL;
INSERT INTO ledger VALUES
    ('north', 1, 10.00, 'first', 'x'), ('north', 2, 20.00, NULL, 'x'), ('south', 1, -1.50, '', 'x');

-- A table that is emptied.
CREATE TABLE emptied (id INT PRIMARY KEY, note TEXT);
INSERT INTO emptied VALUES (1, 'a'), (2, 'b');

-- A table without a key.
CREATE TABLE without_key (id INT, note TEXT);
ALTER TABLE without_key REPLICA IDENTITY FULL;
INSERT INTO without_key VALUES (1, 'a'), (2, 'b'), (3, 'c');

CREATE TABLE marks (id INT PRIMARY KEY);
INSERT INTO marks VALUES (1);
