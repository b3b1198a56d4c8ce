-- The log begins anew, at its first file, while no connector runs.
RESET MASTER;
UPDATE across_logs SET note = 'in the other log' WHERE id = 1;
DELETE FROM across_logs WHERE id = 2;
INSERT INTO marks VALUES (3);
