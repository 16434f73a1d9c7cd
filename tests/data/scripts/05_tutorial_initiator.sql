-- Lesson: the other machine, written with sp_executesql and a host name in a variable.
USE master;
GO
CREATE DATABASE LessonInitiator;
GO
USE LessonInitiator;
GO
CREATE MESSAGE TYPE [//lesson/Two/Request] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//lesson/Two/Reply] VALIDATION = WELL_FORMED_XML;
CREATE CONTRACT [//lesson/Two/Simple]
      ([//lesson/Two/Request] SENT BY INITIATOR, [//lesson/Two/Reply] SENT BY TARGET);
CREATE QUEUE LessonInitiatorQueue;
CREATE SERVICE [//lesson/Two/Initiator] ON QUEUE LessonInitiatorQueue;
GO
DECLARE @host sysname, @cmd nvarchar(max);
SELECT @host = N'target.lesson.example';
SET @cmd = N'CREATE ROUTE LessonTargetRoute WITH SERVICE_NAME = N' + QUOTENAME(N'//lesson/Two/Target', '''')
         + N', ADDRESS = N''TCP://' + @host + N':' + CAST(4022 AS nvarchar(10)) + N'''';
EXEC sp_executesql @cmd;
EXEC msdb.sys.sp_executesql N'CREATE ROUTE LessonInitiatorRoute WITH SERVICE_NAME = N''//lesson/Two/Initiator'', ADDRESS = N''LOCAL''';
GO
DECLARE @dialog uniqueidentifier;
BEGIN TRANSACTION;
BEGIN DIALOG @dialog
     FROM SERVICE [//lesson/Two/Initiator]
     TO SERVICE N'//lesson/Two/Target'
     ON CONTRACT [//lesson/Two/Simple]
     WITH ENCRYPTION = ON;
SEND ON CONVERSATION @dialog MESSAGE TYPE [//lesson/Two/Request] (N'<Request>Hello</Request>');
COMMIT TRANSACTION;
GO
