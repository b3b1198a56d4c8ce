-- What happens while the connector reads the other log.
UPDATE across_logs SET note = 'streamed' WHERE id = 3;
DELETE FROM across_logs WHERE id = 4;
INSERT INTO across_logs VALUES (2, 'once more'), (5, 'new');
INSERT INTO marks VALUES (4);
