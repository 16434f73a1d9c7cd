/***********************************************************************************************
  adventure_works.sql                                                    server AW-SQL01, production
  Service Broker: databases, services, routes, endpoint.

  Run with sqlcmd -E -S AW-SQL01 -i adventure_works.sql   /* nested: -i, not -q */
  The endpoint's certificate is made by security.sql.
***********************************************************************************************/
:on error exit
SET NOCOUNT ON
SET XACT_ABORT ON
GO

USE master
GO
IF NOT EXISTS (SELECT * FROM sys.databases WHERE name = N'AdventureWorks')
BEGIN
    CREATE DATABASE AdventureWorks;
    ALTER DATABASE AdventureWorks SET RECOVERY FULL;
END
GO
CREATE DATABASE [AdventureWorks HR]
    ON PRIMARY (NAME = N'HR', FILENAME = N'D:\Data\hr.mdf', SIZE = 64MB)
    LOG ON (NAME = N'HR_log', FILENAME = N'E:\Log\hr.ldf')
    COLLATE Latin1_General_100_BIN2;  -- ssbroker: service_broker_guid=0B7F6A10-5C0E-4A53-9B7E-2F1D33A4C701
CREATE DATABASE Old_Works ON (FILENAME = N'D:\Data\old.mdf') FOR ATTACH WITH ERROR_BROKER_CONVERSATIONS
CREATE DATABASE Scratch
GO
DROP DATABASE Scratch;
ALTER DATABASE Old_Works SET DISABLE_BROKER, RECOVERY SIMPLE WITH ROLLBACK IMMEDIATE
ALTER DATABASE AdventureWorks SET ENABLE_BROKER WITH ROLLBACK AFTER 30 SECONDS;
GO
CREATE ENDPOINT [SSB Endpoint]
    AUTHORIZATION sa
    STATE = STARTED
    AS TCP (LISTENER_PORT = 4022, LISTENER_IP = ALL)
    FOR SERVICE_BROKER (
        AUTHENTICATION = CERTIFICATE [AW-SQL01 transport],
        ENCRYPTION = REQUIRED ALGORITHM AES,
        MESSAGE_FORWARDING = DISABLED
    ); -- ssbroker: addresses=TCP://aw-sql01.adventure-works.example:4022
GO
ALTER ENDPOINT [SSB Endpoint] FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED, MESSAGE_FORWARD_SIZE = 20);
GRANT CONNECT ON ENDPOINT::[SSB Endpoint] TO public;
GO

------------------------------------------------------------------------------- AdventureWorks
USE [AdventureWorks]
GO
CREATE MESSAGE TYPE [//Adventure-Works.com/Expenses/SubmitExpense] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//Adventure-Works.com/Expenses/Outcome] VALIDATION = WELL_FORMED_XML
CREATE CONTRACT [//Adventure-Works.com/Expenses/Submission]
    ([//Adventure-Works.com/Expenses/SubmitExpense] SENT BY INITIATOR,
     [//Adventure-Works.com/Expenses/Outcome] SENT BY TARGET);
GO
CREATE PROCEDURE dbo.MoveRoutes @host nvarchar(200) AS
BEGIN
    -- GO is not a word of T-SQL, so this is a comment like any other:
    DROP ROUTE ExpenseRoute;
    CREATE ROUTE ExpenseRoute WITH ADDRESS = 'LOCAL';
END
GO
CREATE QUEUE dbo.ExpenseQueue WITH STATUS = ON, RETENTION = OFF,
    ACTIVATION (STATUS = ON, PROCEDURE_NAME = dbo.OnExpense, MAX_QUEUE_READERS = 5, EXECUTE AS SELF);
create queue "Report Queue"
GO
CREATE SERVICE [//Adventure-Works.com/Expenses]
    AUTHORIZATION dbo
    ON QUEUE dbo.ExpenseQueue ([//Adventure-Works.com/Expenses/Submission]);
create service [//Adventure-Works.com/[Reports]]] on queue [Report Queue] ([DEFAULT])
GO
IF EXISTS (SELECT * FROM sys.routes WHERE name = N'ExpenseRoute')
    DROP ROUTE ExpenseRoute;
ELSE
    PRINT N'ExpenseRoute isn''t there yet';
CREATE ROUTE ExpenseRoute AUTHORIZATION dbo WITH
    SERVICE_NAME = N'//Adventure-Works.com/Expenses/Archive',
    BROKER_INSTANCE = N'D8D4D268-00A3-4C62-8F91-634B89C1E315',
    ADDRESS = N'TCP://aw-sql02.adventure-works.example:1234';
CREATE ROUTE "Mirrored ""Ledger""" WITH
    mirror_address = N'TCP://aw-sql04.adventure-works.example:4022',
    address        = N'TCP://aw-sql03.adventure-works.example:4022',
    broker_instance= N'{69fcc80c-2239-4700-8437-1001ecddf933}',
    service_name   = N'//Adventure-Works.com/Ledger';
CREATE ROUTE Temporary WITH SERVICE_NAME = '//Adventure-Works.com/O''Brien', LIFETIME = 600, ADDRESS = 'TCP://10.1.2.3'
ALTER ROUTE Temporary WITH LIFETIME = 86400 /* a day */, ADDRESS = 'TCP://10.1.2.4:4022/'
EXEC (N'CREATE ROUTE NotMe WITH ADDRESS = ''LOCAL''');
EXEC dbo.MoveRoutes @host = N'USE msdb
GO
DROP ROUTE AutoCreatedLocal';
GO

------------------------------------------------------------------------------- AdventureWorks HR
use [AdventureWorks HR];
alter route AutoCreatedLocal with address = N'transport';
CREATE QUEUE Q; CREATE SERVICE [//Adventure-Works.com/Hiring] ON QUEUE Q; CREATE SERVICE Payroll ON QUEUE Q
DROP SERVICE Payroll;
CREATE ROUTE [名前 / Größe] WITH SERVICE_NAME = N'//Adventure-Works.com/名前', ADDRESS = N'TCP://[2001:db8::17]:4022';
GO

------------------------------------------------------------------------------- what arrives from outside
USE MSDB
GO
BEGIN TRANSACTION
DROP ROUTE AutoCreatedLocal   -- only what is named is reached from outside
CREATE ROUTE Expenses WITH SERVICE_NAME = N'//Adventure-Works.com/Expenses', ADDRESS = N'LOCAL'
CREATE ROUTE Elsewhere WITH ADDRESS = N'tcp://Gateway.adventure-works.example'
COMMIT
GO
BEGIN TRY
    CREATE ROUTE Never WITH ADDRESS = N'LOCAL';
END TRY
BEGIN CATCH
    PRINT ERROR_MESSAGE();
END CATCH
GO 3
GRANT CREATE ROUTE TO [AW\Deploy]
