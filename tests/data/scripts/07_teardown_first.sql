-- Drops what an earlier run left, then creates it. Services go before queues, queues before contracts.
CREATE DATABASE Demo
GO
USE Demo
GO
IF EXISTS (SELECT * FROM sys.services WHERE name = N'DemoService') DROP SERVICE DemoService;
IF EXISTS (SELECT * FROM sys.service_queues WHERE name = N'DemoQueue') DROP QUEUE DemoQueue;
IF EXISTS (SELECT * FROM sys.service_contracts WHERE name = N'DemoContract') DROP CONTRACT DemoContract;
IF EXISTS (SELECT * FROM sys.service_message_types WHERE name = N'DemoMessage') DROP MESSAGE TYPE DemoMessage;
GO
CREATE MESSAGE TYPE DemoMessage VALIDATION = EMPTY;
CREATE CONTRACT DemoContract (DemoMessage SENT BY INITIATOR);
CREATE QUEUE DemoQueue WITH STATUS = ON, RETENTION = ON;
CREATE SERVICE DemoService ON QUEUE DemoQueue (DemoContract);
GO
