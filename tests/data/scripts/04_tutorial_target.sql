-- Lesson: a conversation between two instances. Part for the machine of the target.
USE master;
GO
IF EXISTS (SELECT * FROM master.sys.endpoints WHERE name = N'LessonEndpoint')
     DROP ENDPOINT LessonEndpoint;
GO
CREATE ENDPOINT LessonEndpoint
STATE = STARTED
AS TCP ( LISTENER_PORT = 4022 )
FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS );
GO
IF EXISTS (SELECT * FROM sys.databases WHERE name = N'LessonTarget')
     DROP DATABASE LessonTarget;
GO
CREATE DATABASE LessonTarget;
GO
USE LessonTarget;
GO
CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'Choose a long one 1!';
GO
CREATE USER LessonTargetUser WITHOUT LOGIN;
GO
CREATE CERTIFICATE LessonTargetCertificate
     AUTHORIZATION LessonTargetUser
     WITH SUBJECT = 'Target of the lesson', EXPIRY_DATE = N'10/31/2030';

BACKUP CERTIFICATE LessonTargetCertificate TO FILE = N'C:\lesson\target.cer';
GO
CREATE MESSAGE TYPE [//lesson/Two/Request] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//lesson/Two/Reply] VALIDATION = WELL_FORMED_XML;
GO
CREATE CONTRACT [//lesson/Two/Simple]
      ([//lesson/Two/Request] SENT BY INITIATOR,
       [//lesson/Two/Reply] SENT BY TARGET);
GO
CREATE QUEUE LessonTargetQueue;

CREATE SERVICE [//lesson/Two/Target]
       AUTHORIZATION LessonTargetUser
       ON QUEUE LessonTargetQueue ([//lesson/Two/Simple]);
GO
CREATE USER LessonInitiatorUser WITHOUT LOGIN;

CREATE CERTIFICATE LessonInitiatorCertificate
   AUTHORIZATION LessonInitiatorUser
   FROM FILE = N'C:\lesson\initiator.cer';
GO
DECLARE @Cmd NVARCHAR(4000);

SET @Cmd = N'USE LessonTarget;
CREATE ROUTE LessonInitiatorRoute
WITH SERVICE_NAME = N''//lesson/Two/Initiator'',
     ADDRESS = N''TCP://initiator.lesson.example:4022'';';

EXEC (@Cmd);

SET @Cmd = N'USE msdb
CREATE ROUTE LessonTargetRoute
WITH SERVICE_NAME = N''//lesson/Two/Target'',
     ADDRESS = N''LOCAL''';

EXEC (@Cmd);
GO
GRANT SEND ON SERVICE::[//lesson/Two/Target] TO LessonInitiatorUser;
GO
CREATE REMOTE SERVICE BINDING LessonInitiatorBinding
      TO SERVICE N'//lesson/Two/Initiator'
      WITH USER = LessonInitiatorUser;
GO
