-- The Service Broker routing of an instance, written by ssbroker. Comments that start with "ssbroker:" hold what DDL
-- cannot express; ssbroker applies them when it loads the script. A routing catalog has no queues, contracts or security:
-- the queues below are placeholders. Review this script before you run it on SQL Server.
-- ssbroker: pending_requests=//a%2C%20b

USE [master];
GO
CREATE ENDPOINT [ServiceBrokerEndpoint]
    STATE = STARTED
    AS TCP (LISTENER_PORT = 4023, LISTENER_IP = ALL)
    FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS, MESSAGE_FORWARDING = ENABLED); -- ssbroker: addresses_only=TCP://host:4023
GO
CREATE DATABASE [Sales]; -- ssbroker: service_broker_guid=d8d4d268-02a3-4c62-8f91-634b89c1e314
GO
USE [Sales];
GO
CREATE ROUTE [Or]]ders] WITH
    SERVICE_NAME = N'//it''s',
    BROKER_INSTANCE = N'D8D4D268-02A3-4C62-8F91-634B89C1E314',
    LIFETIME = 90,
    ADDRESS = N'TCP://a',
    MIRROR_ADDRESS = N'TCP://b:1'; -- ssbroker: lifetime=2026-11-20T21:01:30.000005Z
GO
CREATE DATABASE [HR];
GO
ALTER DATABASE [HR] SET DISABLE_BROKER WITH ROLLBACK IMMEDIATE; -- ssbroker: service_broker_guid=d8d4d268-02a3-4c62-8f91-634b89c1e314
GO
USE [HR];
GO
DROP ROUTE [AutoCreatedLocal];
CREATE ROUTE [Any] WITH
    ADDRESS = N'TRANSPORT'; -- ssbroker: route_id=7
GO
USE [msdb];
GO
DROP ROUTE [AutoCreatedLocal];
GO
USE [HR];
GO
CREATE QUEUE [dbo].[ServiceQueue];
CREATE SERVICE [//Hiring] ON QUEUE [dbo].[ServiceQueue] ([DEFAULT]);
GO
USE [Sales];
GO
CREATE QUEUE [dbo].[ServiceQueue];
CREATE SERVICE [//it's] ON QUEUE [dbo].[ServiceQueue] ([DEFAULT]);
GO
USE [HR];
GO
CREATE SERVICE [//Pay[]]] ON QUEUE [dbo].[ServiceQueue] ([DEFAULT]);
GO
