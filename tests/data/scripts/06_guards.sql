-- Written so that it can be run again and again.
IF NOT EXISTS (SELECT name FROM sys.databases WHERE name = 'Events')
    CREATE DATABASE Events
GO
USE events
GO
IF NOT EXISTS (SELECT * FROM sys.service_message_types WHERE name = '//events/Happened')
    CREATE MESSAGE TYPE [//events/Happened] VALIDATION = NONE
IF NOT EXISTS (SELECT * FROM sys.service_contracts WHERE name = '//events/Feed')
    CREATE CONTRACT [//events/Feed] ([//events/Happened] SENT BY ANY)
IF OBJECT_ID('dbo.EventQueue') IS NULL
BEGIN
    CREATE QUEUE dbo.EventQueue
END
IF NOT EXISTS (SELECT 1 FROM sys.services WHERE name = N'//events/Sink')
    CREATE SERVICE [//events/Sink] ON QUEUE dbo.EventQueue ([//events/Feed])
IF EXISTS (SELECT * FROM sys.routes WHERE name = 'Archive')
    DROP ROUTE Archive
CREATE ROUTE Archive WITH SERVICE_NAME = '//events/Archive', ADDRESS = 'TCP://archive.example:4022'
GO 2
IF EXISTS (SELECT * FROM sys.services s INNER JOIN sys.service_queues q ON s.service_queue_id = q.object_id
           WHERE q.name = 'EVENTQUEUE' AND s.name = '//events/Sink')
    CREATE ROUTE Found WITH SERVICE_NAME = '//events/Found', ADDRESS = 'LOCAL'
ELSE
    CREATE ROUTE NotFound WITH SERVICE_NAME = '//events/NotFound', ADDRESS = 'LOCAL'
GO
IF (SELECT is_broker_enabled FROM sys.databases WHERE name = DB_NAME()) = 0
    ALTER DATABASE Events SET NEW_BROKER
GO
