-- What happens while the connectors read the log.
CREATE TEMPORARY TABLE copied AS SELECT * FROM everything WHERE id IN (1, 3);
UPDATE copied SET id = id + 10;
INSERT INTO everything SELECT * FROM copied;
INSERT INTO everything (id) VALUES (12);
UPDATE everything SET a_text = 'changed', a_blob = NULL, an_int = 0 WHERE id IN (1, 12);
UPDATE everything SET a_datetime_6 = '2024-10-27 02:30:00.000001' WHERE id = 3;
DELETE FROM everything WHERE id = 11;
INSERT INTO everything SELECT * FROM copied WHERE id = 11;
UPDATE everything SET id = 14 WHERE id = 13;
DELETE FROM everything WHERE id = 2;

INSERT INTO out_of_range VALUES
    (3, '0000-00-00', '0000-00-00', '0000-00-00', '-12:30:00', '-00:00:00.000001', 0),
    (4, '0001-01-01', '0001-01-01', '0001-01-01', '838:59:59', '-838:59:59.999999', 2155);

-- Two rows of one event, before and after the log's file changes: its number gets a digit more.
UPDATE ledger SET amount = amount + 1 WHERE Branch = 'north';
INSERT INTO ledger VALUES ('south', 2, 5.00, '2024-03-31 01:30:00.123', '2024-03-31 01:30:00.123456', 'new', 'x');
FLUSH BINARY LOGS;
BEGIN;
UPDATE ledger SET amount = amount + 1 WHERE Branch = 'north';
UPDATE ledger SET amount = amount * 2 WHERE Branch = 'north' AND number = 1;
DELETE FROM ledger WHERE Branch = 'south' AND number = 1;
INSERT INTO ledger VALUES ('south', 1, 7.00, NULL, NULL, 'again', 'x');
COMMIT;
BEGIN;
DELETE FROM ledger;
ROLLBACK;
UPDATE ledger SET Branch = 'east', number = 9 WHERE Branch = 'south' AND number = 2;
DELETE FROM ledger WHERE Branch = 'north' AND number = 2;
ALTER TABLE ledger ADD COLUMN added INT DEFAULT 5;
UPDATE ledger SET note = 'with the added column' WHERE Branch = 'north';
ALTER TABLE ledger RENAME COLUMN note TO remark;
ALTER TABLE ledger DROP COLUMN dropped;
ALTER TABLE ledger MODIFY COLUMN added BIGINT;
-- Every row: an event that was sent before has the renamed column by its old name.
UPDATE ledger SET remark = concat(coalesce(remark, ''), '!'), added = added + 10000000000;
INSERT INTO ledger VALUES ('west', 1, 0.01, NULL, NULL, 'last', NULL);

UPDATE emptied SET note = 'c' WHERE id = 1;
TRUNCATE emptied;
INSERT INTO emptied VALUES (2, 'd'), (3, 'e');

UPDATE without_key SET note = 'changed' WHERE id = 1;
DELETE FROM without_key WHERE id = 2;
INSERT INTO without_key VALUES (4, NULL);

UPDATE across_logs SET note = 'in the old log' WHERE id IN (1, 2);
INSERT INTO across_logs VALUES (4, 'in the old log');

INSERT INTO marks VALUES (2);
