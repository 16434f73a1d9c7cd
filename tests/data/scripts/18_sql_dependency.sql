-- Query notifications for a web site.
ALTER DATABASE Web SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE
GO
USE Web
GO
CREATE ROLE sql_dependency_subscriber
GO
CREATE QUEUE WebNotifications
GO
CREATE SERVICE WebNotificationService ON QUEUE WebNotifications ([http://schemas.microsoft.com/SQL/Notifications/PostQueryNotification])
GO
GRANT CREATE PROCEDURE, CREATE QUEUE, CREATE SERVICE TO WebUser
GRANT RECEIVE ON QueryNotificationErrorsQueue TO WebUser
GRANT SUBSCRIBE QUERY NOTIFICATIONS TO WebUser
GO
