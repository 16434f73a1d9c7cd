CREATE DATABASE Mail;
GO
USE Mail;
GO
CREATE QUEUE dbo.MailQueue;
GO
CREATE PROCEDURE dbo.ReadMail
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @h uniqueidentifier, @body varbinary(max), @name sysname;
    WHILE 1 = 1
    BEGIN
        BEGIN TRANSACTION;
        WAITFOR (RECEIVE TOP (1) @h = conversation_handle, @body = message_body, @name = message_type_name FROM dbo.MailQueue), TIMEOUT 5000;
        IF @@ROWCOUNT = 0
        BEGIN
            ROLLBACK TRANSACTION;
            BREAK;
        END
        IF @name = N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog'
            END CONVERSATION @h;
        COMMIT TRANSACTION;
    END
END
GO
ALTER QUEUE dbo.MailQueue
    WITH ACTIVATION (STATUS = ON, PROCEDURE_NAME = dbo.ReadMail, MAX_QUEUE_READERS = 4, EXECUTE AS SELF);
CREATE SERVICE MailService ON QUEUE dbo.MailQueue ([DEFAULT]);
GO
EXEC dbo.ReadMail;
GO
