/* Deadlocks into a queue: the service uses a contract that every database has. */
USE msdb;
GO
CREATE QUEUE dbo.DeadlockQueue;
GO
CREATE SERVICE DeadlockService
    ON QUEUE dbo.DeadlockQueue
    ([http://schemas.microsoft.com/SQL/Notifications/PostEventNotification]);
GO
CREATE ROUTE DeadlockRoute WITH SERVICE_NAME = N'DeadlockService', ADDRESS = N'LOCAL';
GO
CREATE EVENT NOTIFICATION Deadlocks ON SERVER FOR DEADLOCK_GRAPH TO SERVICE 'DeadlockService', 'current database';
GO
