USE [master]
GO
CREATE DATABASE [Restored] ON
( FILENAME = N'D:\Restore\Restored.mdf' ),
( FILENAME = N'D:\Restore\Restored_log.ldf' )
 FOR ATTACH WITH NEW_BROKER
GO
USE [Restored]
GO
CREATE ROUTE [Back] WITH SERVICE_NAME = N'//back', ADDRESS = N'TCP://back:4022'
GO
ALTER DATABASE [Restored] SET DISABLE_BROKER WITH NO_WAIT
GO
