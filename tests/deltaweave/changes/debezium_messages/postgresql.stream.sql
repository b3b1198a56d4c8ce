-- What happens while the connectors read the log.
CREATE TEMPORARY TABLE copied AS SELECT * FROM everything WHERE id IN (1, 3);
UPDATE copied SET id = id + 10;
INSERT INTO everything SELECT * FROM copied;
INSERT INTO everything (id) VALUES (12);
UPDATE everything SET a_text = 'changed', a_bytea = NULL, an_int = 0 WHERE id IN (1, 12);
UPDATE everything SET a_timestamp = '2024-10-27 02:30:00.000001' WHERE id = 3;
DELETE FROM everything WHERE id = 11;
INSERT INTO everything SELECT * FROM copied WHERE id = 11;
UPDATE everything SET id = 14 WHERE id = 13;
DELETE FROM everything WHERE id = 2;

INSERT INTO out_of_range VALUES (3, '2024-02-29', '2024-02-29', '2024-02-29 00:00+00', 3);
INSERT INTO out_of_range VALUES (4, 'infinity', 'infinity', 'infinity', 4);
INSERT INTO out_of_range VALUES (5, '0044-03-15 BC', '0044-03-15 BC', '0044-03-15 00:00+00 BC', 5);
INSERT INTO out_of_range VALUES (6, '10000-01-01', '10000-01-01', '10000-01-01 00:00+00', 6);
UPDATE out_of_range SET a_date = '2024-03-01' WHERE id = 3;

CALL insert_toasted(3, 4);
UPDATE toasted SET note = 'the rest is not sent' WHERE id IN (1, 3);
UPDATE toasted SET a_text = repeat('n', 310), ints = '{1,2}', uuids = NULL WHERE id = 2;
-- Whole rows in the log: all that is large is sent, also with a changed key.
ALTER TABLE toasted REPLICA IDENTITY FULL;
UPDATE toasted SET note = 'all is sent' WHERE id = 4;
UPDATE toasted SET id = 5 WHERE id = 4;
ALTER TABLE toasted REPLICA IDENTITY DEFAULT;
UPDATE toasted SET note = 'not sent once more' WHERE id = 5;

INSERT INTO ledger VALUES ('south', 2, 5.00, 'new', 'x');
BEGIN;
UPDATE ledger SET amount = amount + 1 WHERE "Branch" = 'north';
UPDATE ledger SET amount = amount * 2 WHERE "Branch" = 'north' AND number = 1;
DELETE FROM ledger WHERE "Branch" = 'south' AND number = 1;
INSERT INTO ledger VALUES ('south', 1, 7.00, 'again', 'x');
COMMIT;
BEGIN;
DELETE FROM ledger;
ROLLBACK;
UPDATE ledger SET "Branch" = 'east', number = 9 WHERE "Branch" = 'south' AND number = 2;
DELETE FROM ledger WHERE "Branch" = 'north' AND number = 2;
ALTER TABLE ledger ADD COLUMN added INT DEFAULT 5;
UPDATE ledger SET note = 'with the added column' WHERE "Branch" = 'north';
ALTER TABLE ledger RENAME COLUMN note TO remark;
ALTER TABLE ledger DROP COLUMN dropped;
ALTER TABLE ledger ALTER COLUMN added TYPE BIGINT;
-- Every row: an event that was sent before has the renamed column by its old name.
UPDATE ledger SET remark = coalesce(remark, '') || '!', added = added + 10000000000;
INSERT INTO ledger VALUES ('west', 1, 0.01, 'last', NULL);

UPDATE emptied SET note = 'c' WHERE id = 1;
TRUNCATE emptied;
INSERT INTO emptied VALUES (2, 'd'), (3, 'e');

UPDATE without_key SET note = 'changed' WHERE id = 1;
DELETE FROM without_key WHERE id = 2;
INSERT INTO without_key VALUES (4, NULL);

INSERT INTO marks VALUES (2);
